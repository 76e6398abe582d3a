"""Speed of the machine right now: fixed passes, over and over in a loop.

A profile keeps what they took when it was measured, a replay what they take before and after it: that difference is the
machine's, not the simulator's. Not here: what is made of it (realrun.validate.error_parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from realrun.host.device import Event
from realrun.host.machine import frozen_heap
from realrun.kernels.device_passes import NOT_FORCED, ChunkShape, PassShape
from realrun.kernels.issuer import Issuer
from realrun.kernels.pair_kernels import PairKernels
from sim.interface.work import Kind, Model

PROBED_TOKENS = (1, 48)
"""Lengths of a prompt's chunk, of the passes on a CPU."""
DECODED = PassShape(Kind.VERIFY, Model.TARGET, 1)
"""The pass on a GPU, captured: it reads weights, so its clock's cap does not change it, and whoever else reads does."""
REPETITIONS = 40
MIN_REPETITIONS = 3
"""Fewest repetitions, of which the first does not count."""
MAX_S = 0.5
"""Seconds per pass; slow ones are repeated less often."""
WARM_SHARE = 0.2
"""Share of the repetitions that do not count either: a machine that did nothing for a while comes up again."""


def probe(kernels: PairKernels, issuers: Sequence[Issuer]) -> tuple[float, ...]:
    """Mean seconds of the target's fixed passes, without the host's: on a CPU of PROBED_TOKENS, on a GPU of DECODED.
    Empty where slots are too short for them, or no stream of a GPU has captured it."""
    if kernels.runs_on.is_async:
        issuer = next((each for each in issuers if each.is_captured(DECODED)), None)
        shapes = [DECODED] if issuer else []
    else:
        issuer = issuers[0]
        shapes = [PassShape(Kind.PREFILL, Model.TARGET, chunks=(ChunkShape(1, n, True),)) for n in PROBED_TOKENS]
    if issuer is None or kernels.options.max_tokens < max(shape.num_tokens for shape in shapes):
        return ()
    repeated = [_repeated(kernels, issuer, shape) for shape in shapes]
    return tuple(fmean(later.seconds_after(one) for one, later in pairwise(ends)) for ends in repeated)


def _repeated(kernels: PairKernels, issuer: Issuer, shape: PassShape) -> list[Event]:
    """Events at the ends of the repetitions of the shape that count."""
    rows, now_s = [(kernels.sequences.scratch, 0, NOT_FORCED)], kernels.runs_on.now_s
    warmed, began_s = set(issuer.warmed), now_s()
    ends: list[Event] = []
    try:
        with frozen_heap():
            while len(ends) < MIN_REPETITIONS or (len(ends) <= REPETITIONS and now_s() - began_s < MAX_S):
                ends.append(issuer.issue(shape, rows).end)
            ends[-1].synchronize()
    finally:
        # What a stream has run says what it is used for (realrun.replay.replays).
        issuer.warmed = warmed
    return ends[int(WARM_SHARE * len(ends)) :]
