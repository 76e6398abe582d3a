"""What a points file and a replay say of the machine: the same facts under the same keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from calibrate.fit.points_file import MAY_CHANGE
from calibrate.measure.pair import pair_spec
from calibrate.measure.session import Session
from realrun.host.machine import fingerprint

FIXED = {"device", "cpu", "cpu_cores", "threads", "torch", "transformers", "python", "cuda", "dtype"}
"""By which a measurement that goes on knows its machine again."""


def test_a_points_file_and_a_replay_say_the_same_of_the_machine(tmp_path: Path) -> None:
    measured = Session(pair_spec("cpu", "tiny-target"), tmp_path / "p.points.jsonl").fingerprint
    assert {key for key in measured if not key.startswith(MAY_CHANGE)} == FIXED
    assert measured.items() - fingerprint("cpu").items() == {("dtype", "float32")}
    assert fingerprint("cpu").items() <= measured.items()
    assert all(isinstance(value, str) for value in measured.values())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_only_cores_that_it_may_use_are_counted() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert fingerprint("cpu")["cpu_cores"] == "1"
    finally:
        os.sched_setaffinity(0, allowed)
