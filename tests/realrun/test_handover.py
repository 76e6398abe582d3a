# ruff: noqa: E402
"""What serving adds, measured on the threaded host: structure and hand-made runs; seconds are never asserted."""

from __future__ import annotations

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from realrun.handover import Served, idle_ramp, simulated_span_s, with_handover
from realrun.kernels import PairKernels
from realrun.models import random_model
from realrun.options import PairOptions
from sim.costs import load
from sim.costs.profile import decode, encode
from tests.realrun.support import Attention

BUSY = Served(is_paused=False, works=[], submitted=[], span_s=0.4, ttft_s=0.010, e2el_s=0.050)


def paused(lost_s: float, lost_at_once_s: float) -> Served:
    return dataclasses.replace(BUSY, is_paused=True, ttft_s=BUSY.ttft_s + lost_at_once_s, e2el_s=BUSY.e2el_s + lost_s)


def test_a_profile_completed_in_service_is_a_profile_and_says_what_it_rests_on() -> None:
    profile = load("cpu/tiny")
    assert profile.draft is not None
    models = [random_model(shape, dtype=torch.float32) for shape in (profile.target, profile.draft)]
    options = PairOptions(slots=4, max_tokens=128, attention=Attention.FLASH_CPU)
    completed = with_handover(profile, PairKernels(*models, options), repeats=1)
    assert decode(encode(completed), "completed") == completed
    assert completed.host.is_synchronous
    assert not completed.overlap.has_priorities
    assert completed.host.result_s > 0.0
    assert "threaded host" in completed.host.source
    assert simulated_span_s(completed, 3) > simulated_span_s(completed, 1) > 0.0


def test_the_ramp_after_a_pause_follows_from_two_pauses_and_the_first_token() -> None:
    """Pauses of 20 and 100 ms lose 4 and 4 ms: all is lost at once; half of it by the first token, 10 ms of work."""
    runs = {0.020 + 0.054: paused(0.004, 0.002), 0.100 + 0.054: paused(0.004, 0.002)}
    ramp = idle_ramp(BUSY, runs)
    assert ramp is not None
    assert ramp.lost_s == pytest.approx(0.004, rel=0.01)
    assert ramp.pause_s < 0.005
    assert ramp.work_s == pytest.approx(0.010 / 0.6931, rel=0.01)


def test_requests_that_lose_nothing_by_a_pause_make_no_ramp() -> None:
    assert idle_ramp(BUSY, {0.07: paused(-0.001, 0.0), 0.15: paused(0.002, 0.001)}) is None
