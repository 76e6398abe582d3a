"""Times single passes of realrun.kernels.pair_kernels: the very passes that a replay runs, on its streams, eager or
captured.

Between repetitions the slots are set back, outside the timed window, so that every repetition does the same work.
On a GPU the device's time is that of a captured graph, whose stream is held while it is issued: one launch, no gaps,
and never more than a launch queue takes. An eager pass has the same kernels, so what is timed of it is the host that
issues it. On a CPU issuing is executing, so both are the duration of the pass.
Not here: which passes (calibrate.measure.grid), how often (calibrate.measure.repeats).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrate.measure.repeats import Sample
from calibrate.points.point_works import Place
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
MAX_HOLD_S = 0.2
BACK_TO_BACK = 4
"""Times that a graph runs in one hold, of which the last counts: a device that was idle is not at its clocks yet. At
most as many as an issuer has staging buffers (realrun.kernels.issuer)."""


class Pass(NamedTuple):
    """A place made ready to be issued."""

    shape: PassShape
    rows: list[tuple[int, int, int, int]]
    """Rows of integers, their columns named by realrun.kernels.device_passes.Column."""
    known_tokens: int
    """Tokens of each slot before the pass."""
    kv_tokens: int
    """Tokens of each slot in the KV of the pass's model."""


class Bench:
    """Passes of one pair, on streams of its own."""

    def __init__(self, kernels: PairKernels) -> None:
        self.kernels, self.runs_on = kernels, kernels.runs_on
        self._hold_s = HOLD_S
        tokens = kernels.sequences.tokens
        generator = torch.Generator(tokens.device).manual_seed(kernels.options.seed)
        tokens.random_(0, kernels.target.vocab, generator=generator)
        kernels.synchronize()

    def issuer(self, launch: str = "eager", side: int = 0) -> Issuer:
        """An issuer replays every shape that it has captured, so eager and graphed passes have one each."""
        return self.kernels.issuer(f"calibrate {launch} {side}")

    def ready(self, place: Place, first_slot: int = 0) -> Pass:
        """The pass of `place` over the slots from `first_slot` on."""
        slots = range(first_slot, first_slot + place.rows)
        assert slots.stop <= self.kernels.options.slots, (place, first_slot)
        model, context = Model(place.model), place.context_tokens
        if place.kind == "prefill":
            chunk = ChunkShape(place.rows, place.tokens, model is Model.TARGET)
            shape = PassShape(Kind.PREFILL, model, chunks=(chunk,))
            rows = [(slot, place.tokens, NOT_FORCED, 0) for slot in slots]
            return Pass(shape, rows, context + place.tokens, context)
        if place.kind == "draft":
            shape = PassShape(Kind.DRAFT, model, place.rows, 1, place.tokens)
            return Pass(shape, [(slot, 0, NOT_FORCED, 0) for slot in slots], context + 1, context)
        shape = PassShape(Kind.VERIFY, model, place.rows, place.tokens)
        # Nothing accepted: one token emitted, whatever the random drafts say.
        return Pass(shape, [(slot, place.tokens, 0, 0) for slot in slots], context + 1, context)

    def reset(self, pass_: Pass) -> None:
        """Set the slots back to before the pass."""
        self.runs_on.synchronize()
        self.runs_on.run_now(self.back(pass_))

    def back(self, pass_: Pass) -> Callable[[], None]:
        """What sets the slots back to before the pass, to be run on the device."""
        slots = torch.tensor([row[0] for row in pass_.rows], device=self.kernels.device)
        decoder = self.kernels.target if pass_.shape.model is Model.TARGET else self.kernels.draft_model
        assert decoder is not None, "a draft pass without a draft model"
        kv_lengths, lengths = decoder.kv.lengths, self.kernels.sequences.lengths

        def set_back() -> None:
            kv_lengths.index_fill_(0, slots, pass_.kv_tokens)
            lengths.index_fill_(0, slots, pass_.known_tokens)

        return set_back

    def warm(self, place: Place, issuer: Issuer) -> None:
        """First runs of the place's shape, and its capture where it is graphed."""
        is_graphed = place.launch == "graphed"
        issuer.warm(self.ready(place).shape, self.kernels.sequences.scratch, capture=is_graphed)

    def timer(self, place: Place) -> Callable[[], Sample]:
        """A function that times one repetition of `place`, which has run before."""
        issuer, pass_ = self.issuer(place.launch), self.ready(place)
        self.warm(place, issuer)
        if not self.runs_on.is_async:

            def run() -> Sample:
                seconds = self.round_trip_s(pass_, issuer)
                return Sample(seconds, seconds)

            return run
        graphed = self.issuer("graphed")
        self.warm(place._replace(launch="graphed"), graphed)

        def run_on_device() -> Sample:
            graph_s, pending = self.held(pass_, graphed)
            device_s = pending.end.seconds_after(pending.start)
            return Sample(device_s, graph_s if issuer is graphed else self.issue_s(pass_, issuer))

        return run_on_device

    def held(self, pass_: Pass, issuer: Issuer) -> tuple[float, Pending]:
        """The last of several captured passes that were issued while their stream was held, and the seconds that
        issuing it took."""
        back = self.back(pass_)
        while True:
            self.reset(pass_)
            began_s = self.runs_on.now_s()
            issuer.stream.hold(self._hold_s)
            for turn in range(BACK_TO_BACK):
                if turn:
                    issuer.stream.run(back)
                issue_s, pending = self._issued(pass_, issuer)
            host_s = self.runs_on.now_s() - began_s
            assert pending.is_graph, "what is held must be one launch"
            pending.values()
            if host_s < self._hold_s:
                return issue_s, pending
            # A device that had to wait for the host would count that as its own time.
            if self._hold_s >= MAX_HOLD_S:
                raise ValueError(
                    f"issuing graphs took {host_s:.3g} s, longer than a stream is held: the host is too busy to "
                    "measure; end what else runs on it"
                )
            self._hold_s = min(MAX_HOLD_S, HOLD_SHARE * host_s)

    def issue_s(self, pass_: Pass, issuer: Issuer) -> float:
        """Seconds to issue the pass on an idle device, which is waited for afterwards."""
        self.reset(pass_)
        seconds, pending = self._issued(pass_, issuer)
        pending.values()
        return seconds

    def issue_timer(self, place: Place, issuer: Issuer, first_slot: int) -> Callable[[], float]:
        """A function that times the issuing of one repetition alone, and then waits for it.

        The slots are set back on the issuer's own stream, so that several threads do not wait for each other.
        """
        pass_ = self.ready(place, first_slot)
        back = self.back(pass_)

        def run() -> float:
            issuer.stream.run(back)
            seconds, pending = self._issued(pass_, issuer)
            pending.values()
            return seconds

        return run

    def _issued(self, pass_: Pass, issuer: Issuer) -> tuple[float, Pending]:
        """Seconds that issuing took, and what was issued."""
        began_s = self.runs_on.now_s()
        pending = issuer.issue(pass_.shape, pass_.rows)
        return self.runs_on.now_s() - began_s, pending

    def round_trip_s(self, pass_: Pass, issuer: Issuer) -> float:
        """Wall time of one repetition, from issuing to the result on the host."""
        self.reset(pass_)
        began_s = self.runs_on.now_s()
        issuer.issue(pass_.shape, pass_.rows).values()
        return self.runs_on.now_s() - began_s


def count_kernels(bench: Bench, place: Place, issuer: Issuer) -> int:
    """Operations that an eager pass of `place` launches: what torch dispatches, views left out."""

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

    pass_ = bench.ready(place)
    bench.reset(pass_)
    inputs = torch.tensor(pass_.rows, device=bench.kernels.device)
    with Counter():
        bench.runs_on.run_now(lambda: bench.kernels.passes.run(pass_.shape, inputs))
    return Counter.num_kernels
