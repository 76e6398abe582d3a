"""Times single passes of realrun.kernels.pair_kernels: the very passes that a replay runs, on its streams, eager or
captured.

Between repetitions the slots are set back, outside the timed window, so that every repetition does the same work.
On CUDA a delay kernel holds the stream while the pass is issued: the events around it then see device time alone,
and the wall clock the host's. On a CPU issuing is executing, so both are the duration of the pass.
Not here: which passes (calibrate.measure.grid), how often (calibrate.measure.repeats).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrate.measure.repeats import Sample
from calibrate.points.work import Place
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from realrun.kernels.passes import NOT_FORCED, ChunkShape, PassShape
from realrun.model.decoder import Decoder
from sim.seam.work import Kind, Model

SLEEP_CYCLES_PER_S = 2.0e9
"""Cycles of the delay kernel per second, at least: GPU clocks are below 2 GHz (slower clocks only wait longer)."""
SLEEP_SHARE = 2.0
"""The delay is this many times the issuing time of the pass."""
SLEEP_MOST_S = 0.2


class Pass(NamedTuple):
    """A place made ready to be issued."""

    shape: PassShape
    rows: list[tuple[int, int, int, int]]
    """As realrun.kernels.passes.Column."""
    known_tokens: int
    """Per slot, before the pass."""
    kv_tokens: int
    """Per slot in the KV of the pass's model."""


class Bench:
    """Passes of one pair. `slots` are the rows that it may use, all of them unless told otherwise."""

    def __init__(self, kernels: PairKernels) -> None:
        self.kernels = kernels
        self.is_cuda = kernels.device.type == "cuda"
        tokens = kernels.sequences.tokens
        generator = torch.Generator(tokens.device).manual_seed(kernels.options.seed)
        tokens.random_(0, kernels.target.vocab, generator=generator)
        kernels.synchronize()

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
        """Set the slots back to before the pass, and wait for it."""
        slots = torch.tensor([row[0] for row in pass_.rows], device=self.kernels.device)
        self._decoder(pass_).kv.lengths[slots] = pass_.kv_tokens
        self.kernels.sequences.lengths[slots] = pass_.known_tokens
        self.kernels.synchronize()

    def _decoder(self, pass_: Pass) -> Decoder:
        decoder = self.kernels.target if pass_.shape.model is Model.TARGET else self.kernels.draft_model
        assert decoder is not None, "a draft pass without a draft model"
        return decoder

    def warm(self, place: Place, issuer: Issuer, first_slot: int = 0) -> None:
        """First runs of the place's shape, and its capture where it is graphed."""
        is_graphed = place.launch == "graphed"
        issuer.warm(self.ready(place, first_slot).shape, self.kernels.sequences.scratch, capture=is_graphed)

    def timer(self, place: Place, issuer: Issuer, first_slot: int = 0) -> Callable[[], Sample]:
        """A function that times one repetition of `place`."""
        pass_ = self.ready(place, first_slot)
        if self.is_cuda:
            return self._cuda_timer(pass_, issuer)

        def run() -> Sample:
            self.reset(pass_)
            started_s = perf_counter()
            issuer.issue(pass_.shape, pass_.rows).values()
            seconds = perf_counter() - started_s
            return Sample(seconds, seconds)

        return run

    def _cuda_timer(self, pass_: Pass, issuer: Issuer) -> Callable[[], Sample]:
        stream: Any = issuer.stream
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        free_s: float | None = None
        """To issue the pass with nothing held: a held stream's launch queue may fill up, and issuing then waits."""

        def run() -> Sample:
            nonlocal free_s
            self.reset(pass_)
            if free_s is None:
                started_s = perf_counter()
                pending = issuer.issue(pass_.shape, pass_.rows)
                free_s = perf_counter() - started_s
                pending.values()
                self.reset(pass_)
            held_s = min(SLEEP_MOST_S, SLEEP_SHARE * free_s)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(int(held_s * SLEEP_CYCLES_PER_S))
                start.record(stream)
            started_s = perf_counter()
            pending = issuer.issue(pass_.shape, pass_.rows)
            host_s = perf_counter() - started_s
            end.record(stream)
            pending.values()
            end.synchronize()
            return Sample(1e-3 * start.elapsed_time(end), host_s if host_s < held_s else free_s)

        return run

    def issue_timer(self, place: Place, issuer: Issuer, first_slot: int = 0) -> Callable[[], float]:
        """A function that times the issuing of one repetition alone, and then waits for it.

        The slots are set back on the issuer's own stream, so that several threads do not wait for each other.
        """
        pass_ = self.ready(place, first_slot)
        slots = torch.tensor([row[0] for row in pass_.rows], device=self.kernels.device)
        self.kernels.synchronize()
        lengths = self.kernels.sequences.lengths
        kv_lengths = self._decoder(pass_).kv.lengths

        def run() -> float:
            with torch.cuda.stream(issuer.stream) if self.is_cuda else nullcontext():
                kv_lengths.index_fill_(0, slots, pass_.kv_tokens)
                lengths.index_fill_(0, slots, pass_.known_tokens)
            started_s = perf_counter()
            pending = issuer.issue(pass_.shape, pass_.rows)
            seconds = perf_counter() - started_s
            pending.values()
            return seconds

        return run

    def round_trip_s(self, place: Place, issuer: Issuer) -> float:
        """Wall time of one repetition, from issuing to the result on the host."""
        pass_ = self.ready(place)
        self.reset(pass_)
        started_s = perf_counter()
        issuer.issue(pass_.shape, pass_.rows).values()
        return perf_counter() - started_s

    def loop(self, places: Sequence[Place], issuer: Issuer, seconds: float) -> None:
        """Keep the device busy with `places`, one after the other, for `seconds`."""
        passes = [self.ready(place) for place in places]
        ends_s = perf_counter() + seconds
        while perf_counter() < ends_s:
            for pass_ in passes:
                self.reset(pass_)
                issuer.issue(pass_.shape, pass_.rows).values()


def count_kernels(bench: Bench, place: Place, issuer: Issuer) -> int:
    """Operations that an eager pass of `place` launches: what torch dispatches, views left out."""

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        num_kernels = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not getattr(func, "is_view", False):
                Counter.num_kernels += 1
            return func(*args, **(kwargs or {}))

    pass_ = bench.ready(place)
    bench.reset(pass_)
    inputs = torch.tensor(pass_.rows, device=bench.kernels.device)
    with torch.inference_mode(), Counter():
        bench.kernels.passes.run(pass_.shape, inputs)
    bench.kernels.synchronize()
    return Counter.num_kernels
