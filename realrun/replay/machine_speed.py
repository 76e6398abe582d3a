"""Speed of the machine right now: fixed passes, over and over in a loop.

A profile keeps what they took when it was measured, a replay what they take before and after it: that difference is the
machine's, not the simulator's. Not here: what is made of it (realrun.validate.error_parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from realrun.host.device import Event
from realrun.host.garbage_collector import frozen_heap
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
LAUNCHED = PassShape(Kind.PREFILL, Model.TARGET, chunks=(ChunkShape(1, PROBED_TOKENS[0], True),))
"""The pass whose launching, kernel by kernel, says how fast a GPU's host is."""
WARM_SHARE = 0.2
"""Share of the repetitions that do not count either: a machine that did nothing for a while comes up again."""


def probe(kernels: PairKernels, issuers: Sequence[Issuer]) -> tuple[float, ...]:
    """Mean seconds of the target's fixed passes: on a CPU over each of PROBED_TOKENS, on a GPU DECODED, from end to end
    of passes that follow each other on the device, with nothing of the host's. No request's state changes.

    Empty where slots are too short for them, or no stream of a GPU has captured it.
    """
    if kernels.runs_on.is_async:
        issuer = next((each for each in issuers if each.is_captured(DECODED)), None)
        shapes = [DECODED] if issuer else []
    else:
        issuer = issuers[0]
        shapes = [PassShape(Kind.PREFILL, Model.TARGET, chunks=(ChunkShape(1, n, True),)) for n in PROBED_TOKENS]
    if issuer is None or kernels.options.max_tokens < max(shape.num_tokens for shape in shapes):
        return ()
    periods = [_repeated(kernels, issuer, shape) for shape in shapes]
    return tuple(fmean(later.seconds_after(one) for one, later in pairwise(ends)) for _, ends in periods)


def launch_s(kernels: PairKernels, issuers: Sequence[Issuer]) -> float | None:
    """Mean seconds that the host takes to launch LAUNCHED on an idle GPU; None on a CPU, whose passes `probe` times."""
    if not kernels.runs_on.is_async:
        return None
    seconds, _ = _repeated(kernels, issuers[0], LAUNCHED, waits=True)
    return fmean(seconds)


def _repeated(
    kernels: PairKernels, issuer: Issuer, shape: PassShape, *, waits: bool = False
) -> tuple[list[float], list[Event]]:
    """Seconds that issuing the shape took and the events at its ends, of the repetitions that count; with `waits` each
    begins when the one before it is over."""
    rows, now_s = [(kernels.sequences.scratch, 0, NOT_FORCED, 0)], kernels.runs_on.now_s
    warmed, began_s = set(issuer.warmed), now_s()
    issued: list[tuple[float, Event]] = []
    try:
        with frozen_heap():
            while len(issued) < MIN_REPETITIONS or (len(issued) <= REPETITIONS and now_s() - began_s < MAX_S):
                issue_s = now_s()
                end = issuer.issue(shape, rows).end
                issued.append((now_s() - issue_s, end))
                if waits:
                    end.synchronize()
            issued[-1][1].synchronize()
    finally:
        # What a stream has run says what it is used for (realrun.replay.replays).
        issuer.warmed = warmed
    counted = issued[int(WARM_SHARE * len(issued)) :]
    return [seconds for seconds, _ in counted], [end for _, end in counted]
