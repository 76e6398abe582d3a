"""SGLang's own scheduler, as it was recorded, plans each step of a drawn case as `continuous` does with its rules."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from validation.conformance.sglang import SglangLog, simulated

RECORDED = (Path(__file__).parent / "sglang_steps.json.gz").read_bytes()
LOGS = msgspec.json.decode(gzip.decompress(RECORDED), type=list[SglangLog])
"""Of SGLang 0.5.6: its `Scheduler.get_next_batch_to_run` and its results were driven without a GPU."""
OTHER_VICTIMS = {
    ("no drafts, prefix in common, memory short", 4),
    ("no drafts, prefix in common, memory short", 12),
    ("3 drafts, memory short", 7),
}
"""Where memory is short SGLang loses other cached tokens: leaves of its tree, whole, by their last use."""


@pytest.mark.parametrize("kind", list(dict.fromkeys(log.kind for log in LOGS)))
def test_every_step_is_the_one_that_sglangs_scheduler_planned(kind: str) -> None:
    for log in LOGS:
        if log.kind == kind:
            assert (log.planned() == simulated(log.case)) == ((kind, log.case.seed) not in OTHER_VICTIMS), log.case.seed
