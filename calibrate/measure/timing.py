"""Timing of single passes of realrun.kernels.pair_kernels, the same that a replay runs, on its streams, eager or
captured.

Between repetitions the slots are set back, outside the timed window, so that every repetition does the same work.
On a GPU the device's time is that of a captured graph, whose stream is held while it is issued: one launch, no gaps.
An eager pass has the same kernels, so what is timed of it is the host that issues it. On a CPU issuing is executing, so
both are the duration of the pass.
A pass is timed until it is warm, and then until its median is known tightly, or it is marked noisy. Warm means: the
newest block of repetitions is not faster than the one before it by more than WARM_SHARE. Tight means: half of the
median's 95 % interval, by order statistics, is at most TIGHT_SHARE of it.
Not here: which passes (calibrate.fit.grid).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, sqrt
from statistics import median
from threading import Barrier, BrokenBarrierError, Thread
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrate.fit.point_works import NOISY_PCT, TimedPass
from realrun.kernels.device_passes import NOT_FORCED, ChunkShape, PassShape
from realrun.kernels.issuer import Issuer, Pending
from realrun.kernels.pair_kernels import PairKernels
from sim.interface.work import Kind, Model

if TYPE_CHECKING:
    from torch._ops import OpOverload

HOLD_S = 1e-3
"""Seconds that a stream is held while a graph is issued, at least."""
HOLD_SHARE = 2.0
"""And so many times what issuing took when it took longer."""
MAX_HOLD_S = 0.05
WARM_RUNS = 3
"""Runs right before the held one, which alone counts: a device that was idle is not at its clocks yet. Not in the hold:
on an H200 (driver 580) issuing four passes took until it was over."""


BLOCK = 3
"""Repetitions that are compared at a time while warming up."""
WARM_SHARE = 0.05
MAX_WARM_BLOCKS = 6
TIGHT_SHARE = 0.02
MIN_REPETITIONS = 7
"""Fewer give no 95 % interval of a median by order statistics."""
MAX_REPETITIONS = 60
AT_ONCE = "at once"
"""Beginning of the names of threads that begin together."""


class Sample(NamedTuple):
    """One repetition. On a CPU both are the duration of the pass."""

    device_s: float
    host_s: float


class Timing(NamedTuple):
    """Medians over the repetitions after warm-up; fields as in MeasuredPoint."""

    device_s: float
    host_s: float
    half_width_pct: float
    """Half of the 95 % interval of the median device time, percent of it."""
    repetitions: int
    is_noisy: bool


class ReadyPass(NamedTuple):
    shape: PassShape
    rows: list[tuple[int, int, int]]
    """Rows of integers, their columns named by realrun.kernels.device_passes.InputColumn."""
    known_tokens: int
    """Tokens of each slot before the pass."""
    kv_tokens: int
    """Tokens of each slot in the KV of the pass's model."""


class Bench:
    def __init__(self, kernels: PairKernels) -> None:
        self.kernels, self.runs_on = kernels, kernels.runs_on
        self._hold_s = HOLD_S
        tokens = kernels.sequences.tokens
        generator = torch.Generator(tokens.device).manual_seed(kernels.options.seed)
        tokens.random_(0, kernels.target.vocab, generator=generator)
        kernels.runs_on.synchronize()

    def issuer(self, launch: str = "eager", side: int = 0) -> Issuer:
        """An issuer replays every shape that it has captured, so eager and graphed passes have one each."""
        return self.kernels.issuer(f"calibrate {launch} {side}")

    def ready(self, timed: TimedPass, first_slot: int = 0) -> ReadyPass:
        """The pass of `timed` over the slots from `first_slot` on."""
        slots = range(first_slot, first_slot + timed.rows)
        assert slots.stop <= self.kernels.options.slots, (timed, first_slot)
        model, context = Model(timed.model), timed.context_tokens
        if timed.kind == "prefill":
            chunk = ChunkShape(timed.rows, timed.tokens, model is Model.TARGET)
            shape = PassShape(Kind.PREFILL, model, chunks=(chunk,))
            rows = [(slot, timed.tokens, NOT_FORCED) for slot in slots]
            return ReadyPass(shape, rows, context + timed.tokens, context)
        if timed.kind == "draft":
            shape = PassShape(Kind.DRAFT, model, timed.rows, 1, timed.tokens)
            return ReadyPass(shape, [(slot, 0, NOT_FORCED) for slot in slots], context + 1, context)
        shape = PassShape(Kind.VERIFY, model, timed.rows, timed.tokens)
        # Nothing accepted: one token emitted, whatever the random drafts say.
        return ReadyPass(shape, [(slot, timed.tokens, 0) for slot in slots], context + 1, context)

    def reset(self, pass_: ReadyPass) -> None:
        self.runs_on.synchronize()
        self.runs_on.run_now(self.back(pass_))

    def back(self, pass_: ReadyPass) -> Callable[[], None]:
        """Function that sets the slots back to before the pass, to be run on the device."""
        slots = torch.tensor([row[0] for row in pass_.rows], device=self.kernels.device)
        decoder = self.kernels.target if pass_.shape.model is Model.TARGET else self.kernels.draft_model
        assert decoder is not None, "a draft pass without a draft model"
        kv_lengths, lengths = decoder.kv.lengths, self.kernels.sequences.lengths

        def set_back() -> None:
            kv_lengths.index_fill_(0, slots, pass_.kv_tokens)
            lengths.index_fill_(0, slots, pass_.known_tokens)

        return set_back

    def warm(self, timed: TimedPass, issuer: Issuer) -> None:
        """First runs of the pass's shape, and its capture where it is graphed."""
        is_graphed = timed.launch == "graphed"
        issuer.warm(self.ready(timed).shape, self.kernels.sequences.scratch, capture=is_graphed)

    def timer(self, timed: TimedPass) -> Callable[[], Sample]:
        """A function that times one repetition of `timed`, which has run before."""
        issuer, pass_ = self.issuer(timed.launch), self.ready(timed)
        self.warm(timed, issuer)
        if not self.runs_on.is_async:

            def run() -> Sample:
                seconds = self.round_trip_s(pass_, issuer)
                return Sample(seconds, seconds)

            return run
        graphed = self.issuer("graphed")
        self.warm(timed._replace(launch="graphed"), graphed)

        def run_on_device() -> Sample:
            graph_s, pending = self.held(pass_, graphed)
            device_s = pending.end.seconds_after(pending.start)
            return Sample(device_s, graph_s if issuer is graphed else self.issue_s(pass_, issuer))

        return run_on_device

    def held(self, pass_: ReadyPass, issuer: Issuer) -> tuple[float, Pending]:
        """A captured pass that was issued while its stream was held, and the seconds that issuing it takes."""
        back = self.back(pass_)
        while True:
            self.reset(pass_)
            issue_s, pending = self._issued(pass_, issuer)
            for _ in range(WARM_RUNS - 1):
                issuer.stream.run(back)
                _, pending = self._issued(pass_, issuer)
            issuer.stream.run(back)
            pending.values()
            began_s = self.runs_on.now_s()
            issuer.stream.hold(self._hold_s)
            _, pending = self._issued(pass_, issuer)
            host_s = self.runs_on.now_s() - began_s
            assert pending.is_graph, "what is held must be one launch"
            pending.values()
            if host_s < self._hold_s:
                return issue_s, pending
            # A device that had to wait for the host would count that as device time. A launch that blocks until the
            # hold is over has filled the queue: the host is ahead of the device, whatever it took.
            if self._hold_s >= MAX_HOLD_S:
                if host_s < HOLD_SHARE * self._hold_s + pending.end.seconds_after(pending.start):
                    return issue_s, pending
                raise ValueError(
                    f"issuing a graph took {host_s:.3g} s, longer than a stream is held: the host is too busy to "
                    "measure. End what else runs on it"
                )
            self._hold_s = min(MAX_HOLD_S, HOLD_SHARE * host_s)

    def issue_s(self, pass_: ReadyPass, issuer: Issuer) -> float:
        """Seconds to issue the pass on an idle device, which is waited for afterwards."""
        self.reset(pass_)
        seconds, pending = self._issued(pass_, issuer)
        pending.values()
        return seconds

    def issue_timer(self, timed: TimedPass, issuer: Issuer, first_slot: int) -> Callable[[], float]:
        """A function that times issuing alone, and then waits. Slots are set back on the stream, not among threads."""
        pass_ = self.ready(timed, first_slot)
        back = self.back(pass_)

        def run() -> float:
            issuer.stream.run(back)
            seconds, pending = self._issued(pass_, issuer)
            pending.values()
            return seconds

        return run

    def _issued(self, pass_: ReadyPass, issuer: Issuer) -> tuple[float, Pending]:
        """Seconds that issuing took, and what was issued."""
        began_s = self.runs_on.now_s()
        pending = issuer.issue(pass_.shape, pass_.rows)
        return self.runs_on.now_s() - began_s, pending

    def round_trip_s(self, pass_: ReadyPass, issuer: Issuer) -> float:
        """Wall time of one repetition, from issuing to the result on the host."""
        self.reset(pass_)
        began_s = self.runs_on.now_s()
        issuer.issue(pass_.shape, pass_.rows).values()
        return self.runs_on.now_s() - began_s


def count_kernels(bench: Bench, timed: TimedPass) -> int:
    """Operations that an eager pass of `timed` launches: what torch dispatches, views left out."""

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        num_kernels = 0

        def __torch_dispatch__(
            self,
            func: OpOverload,
            types: Sequence[type],
            args: tuple[torch.Tensor, ...] = (),
            kwargs: Mapping[str, torch.Tensor] | None = None,
        ) -> torch.Tensor:
            if not getattr(func, "is_view", False):
                Counter.num_kernels += 1
            return func(*args, **(kwargs or {}))

    pass_ = bench.ready(timed)
    bench.reset(pass_)
    inputs = torch.tensor(pass_.rows, device=bench.kernels.device)
    with Counter():
        bench.runs_on.run_now(lambda: bench.kernels.passes.run(pass_.shape, inputs))
    return Counter.num_kernels


def at_once(jobs: Sequence[Callable[[Barrier], None]]) -> None:
    """Run all `jobs`; each waits at the barrier when it is ready. Raises what the first failing job raised."""
    barrier = Barrier(len(jobs))
    errors: list[BaseException] = []

    def guarded(job: Callable[[Barrier], None]) -> None:
        try:
            job(barrier)
        except BrokenBarrierError:
            return
        except BaseException as error:
            errors.append(error)
            # The others would wait for this one for ever.
            barrier.abort()

    threads = [Thread(target=guarded, args=(job,), name=f"{AT_ONCE} {number}") for number, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    if barrier.broken:
        raise RuntimeError("threads that were to begin together did not. The machine is too busy")


def repeat(
    run: Callable[[], Sample],
    *,
    share_s: float,
    clock: Callable[[], float],
    least: int = MIN_REPETITIONS,
    most: int = MAX_REPETITIONS,
) -> Timing:
    """Time `run` for about `share_s` seconds at most, and `least` times at least, which is BLOCK or more."""
    started_s = clock()
    block = [run() for _ in range(BLOCK)]
    for _ in range(MAX_WARM_BLOCKS - 1):
        newer = [run() for _ in range(BLOCK)]
        is_warm = _middle(newer) >= (1.0 - WARM_SHARE) * _middle(block)
        block = newer
        if is_warm or clock() - started_s > 0.5 * share_s:
            break
    kept = block
    while len(kept) < most:
        if len(kept) >= least:
            is_tight = half_width(sorted(sample.device_s for sample in kept)) <= TIGHT_SHARE * _middle(kept)
            if is_tight or clock() - started_s > share_s:
                break
        kept.append(run())
    middle_s = _middle(kept)
    half_share = half_width(sorted(sample.device_s for sample in kept)) / middle_s
    return Timing(
        device_s=middle_s,
        host_s=median(sample.host_s for sample in kept),
        half_width_pct=round(100.0 * half_share, 2),
        repetitions=len(kept),
        is_noisy=100.0 * half_share > NOISY_PCT,
    )


def half_width(ordered: list[float]) -> float:
    """Half of the 95 % interval of the median of `ordered` values, by order statistics (normal approximation of the
    binomial; David and Nagaraja, Order Statistics, 2003, section 7.1)."""
    num = len(ordered)
    reach = 1.96 * sqrt(num) / 2.0
    low = max(0, floor(num / 2.0 - reach) - 1)
    high = min(num - 1, ceil(num / 2.0 + reach))
    return 0.5 * (ordered[high] - ordered[low])


def _middle(samples: list[Sample]) -> float:
    return median(sample.device_s for sample in samples)
