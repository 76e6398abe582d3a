"""What a points file and a replay say of the machine: the same facts, each under the keys that its files have."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.fit.points_file import MAY_CHANGE
from calibrate.measure.machine import fingerprint
from realrun.host import machine

FIXED = {"device", "cpu", "cpu_cores", "threads", "torch", "transformers", "python", "cuda", "dtype"}
"""By which a measurement that goes on knows its machine again."""


def test_a_points_file_keeps_the_keys_that_tell_two_machines_apart() -> None:
    found = fingerprint("cpu", "float32")
    assert {key for key in found if not key.startswith(MAY_CHANGE)} == FIXED
    assert set(found) - FIXED == {"driver"}
    assert all(isinstance(value, str) for value in found.values())


def test_a_replay_keeps_its_keys_and_says_the_same_of_the_machine() -> None:
    measured, replayed = fingerprint("cpu", "float32"), machine.fingerprint("cpu")
    assert set(replayed) == {"device", "processor", "cores", "system", "python", "torch", "transformers"}
    assert replayed["processor"] == measured["cpu"]
    for key in ("device", "python", "torch", "transformers"):
        assert replayed[key] == measured[key]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_points_file_counts_the_cores_that_it_may_use_and_a_replay_all() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert fingerprint("cpu", "float32")["cpu_cores"] == "1"
        assert machine.fingerprint("cpu")["cores"] == str(os.cpu_count())
    finally:
        os.sched_setaffinity(0, allowed)
