"""What a points file and a replay say of the machine: the same facts under the same keys."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

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


def test_a_replay_says_the_same_of_the_machine() -> None:
    measured, replayed = fingerprint("cpu", "float32"), machine.fingerprint("cpu")
    assert measured.items() - replayed.items() == {("driver", "none"), ("dtype", "float32")}
    assert replayed.items() <= measured.items()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_only_cores_that_it_may_use_are_counted() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert fingerprint("cpu", "float32")["cpu_cores"] == "1"
    finally:
        os.sched_setaffinity(0, allowed)
