"""Co-runs of a lent GPU: every one of the grid that a points file lacks, the most valuable first.

How fast prefill beside decode and draft beside verify run on two plain streams, relative to each alone: nobody
publishes it. Not here: which pairs (calibrate.measure.overlap_cells), how they are rated (calibrate.measure.rates).
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

from calibrate.fit import points_file
from calibrate.measure.overlap_cells import CONTEXTS, NUM_FIRST, ROOM_TOKENS, coruns, slots
from calibrate.measure.pair import PairSpec, build, needs
from calibrate.measure.session import Session
from calibrate.measure.timing import Bench
from realrun.host import cuda
from realrun.host.garbage_collector import frozen_heap
from realrun.model.memory import GIB

STREAMS = 3
"""As many as passes at once."""
CORUN_SHARE = 0.8
"""Share of a co-run's time that is measured; the rest is its first passes and captures."""


def rate_coruns(spec: PairSpec, path: Path, budget_s: float) -> None:
    """Rate what the points file of the pair lacks, for so many seconds. Raises ValueError for what cannot be done."""
    with points_file.alone(path):
        session = Session(spec, path)
        roomy = fitting(spec)
        context_tokens = roomy.slot_tokens - ROOM_TOKENS
        planned = coruns(spec.device, context_tokens)
        known = session.held.rates
        left = [corun for corun in planned if corun not in {ran.corun for ran in known}]
        print(
            f"corun: {context_tokens} tokens in KV, {len(left)} of {len(planned)} to measure; {session.driver.said}",
            flush=True,
        )
        bench, longest_s = Bench(build(roomy, STREAMS)) if left else None, 0.0
        # Those that are worth most have time enough; whatever is left after them is for others.
        ends_s, share_s = perf_counter() + budget_s, CORUN_SHARE * budget_s / max(1, min(len(left), NUM_FIRST))
        with frozen_heap():
            while bench and left and ends_s - (began_s := perf_counter()) > longest_s:
                ran = session.rate(bench, left[0], share_s)
                known.append(ran)
                longest_s, noise = max(longest_s, perf_counter() - began_s), max(ran.sums) - min(ran.sums)
                rates = " + ".join(f"{rate:.2f}" for rate in ran.rates)
                print(
                    f"corun: {left.pop(0).name}: rates {rates} (±{50.0 * noise / median(ran.sums):.0f} %)", flush=True
                )
    if left:
        print(f"corun: {len(left)} left, from {left[0].name} on; evidence --only corun goes on with them")


def fitting(spec: PairSpec) -> PairSpec:
    """The pair of `spec` with slots for every co-run, of the longest context that fits the device's memory. Raises
    ValueError if none does."""
    free = cuda.find(spec.device).free_bytes()
    for context in CONTEXTS[spec.device]:
        roomy = spec._replace(rows=slots(spec.device, context), slot_tokens=context + ROOM_TOKENS)
        if (least := needs(roomy, STREAMS)).total <= free:
            return roomy
    raise ValueError(f"co-runs need {least} with {context} tokens in KV, and {spec.device} has {free / GIB:.1f} GiB")
