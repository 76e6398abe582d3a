"""Speed of the machine right now: two fixed passes, over and over in a loop.

A profile keeps what they took when it was measured, a replay what they take before and after it: that difference is the
machine's, not the simulator's. Not here: what is made of it (realrun.validate.error_parts).
"""

from __future__ import annotations

from statistics import fmean
from time import perf_counter

from realrun.host.garbage_collector import frozen_heap
from realrun.kernels.device_passes import NOT_FORCED, ChunkShape, PassShape
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from sim.interface.work import Kind, Model

PROBED_TOKENS = (1, 48)
"""Lengths of a prompt's chunk, which no stream captures: its launch is the same whatever else runs there."""
REPETITIONS = 40
MIN_REPETITIONS = 2
"""Fewest repetitions, before which there is always one that does not count."""
MAX_S = 0.5
"""Seconds per pass; slow ones are repeated less often."""
WARM_SHARE = 0.2
"""Share of the repetitions that do not count either: a machine that did nothing for a while comes up again."""


def probe(kernels: PairKernels, issuer: Issuer) -> tuple[float, ...]:
    """Mean seconds of the target's pass over each of PROBED_TOKENS. No request's state changes.

    Empty where slots are too short for them.
    """
    if kernels.options.max_tokens < max(PROBED_TOKENS):
        return ()
    warmed = set(issuer.warmed)
    try:
        with frozen_heap():
            return tuple(_mean_s(kernels, issuer, num_tokens) for num_tokens in PROBED_TOKENS)
    finally:
        # What a stream has run says what it is used for (realrun.replay.replays).
        issuer.warmed = warmed


def _mean_s(kernels: PairKernels, issuer: Issuer, num_tokens: int) -> float:
    shape = PassShape(Kind.PREFILL, Model.TARGET, chunks=(ChunkShape(1, num_tokens, True),))
    rows = [(kernels.sequences.scratch, 0, NOT_FORCED, 0)]
    issuer.issue(shape, rows).values()
    times_s: list[float] = []
    while len(times_s) < MIN_REPETITIONS or (len(times_s) < REPETITIONS and sum(times_s) < MAX_S):
        started_s = perf_counter()
        issuer.issue(shape, rows).values()
        times_s.append(perf_counter() - started_s)
    return fmean(times_s[int(WARM_SHARE * len(times_s)) :])
