"""The curve of shares comes back from co-runs whose truth is known, and simulations of the profile use it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from calibrate.fit.point_works import work_of
from calibrate.fit.points_file import Ran
from calibrate.measure.fits.share_fit import BOUNDS, fit_shares, said
from calibrate.measure.overlap_cells import coruns
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode, load
from sim.devices.contention import contention_of
from sim.devices.partition import MEASURED, Portion, rates_on_shares
from tests.calibrate.measure.co_runs import ran

TRUTH = msgspec.structs.replace(MEASURED, saturated_at=0.4, queue_slowdown=2.0, bandwidth_together=0.9)
PAIR = load("h100-sxm/llama-3.1-8b+llama-3.2-1b")
ALONE_S = 0.01


def rated(noise: float = 0.0, shares: tuple[int, ...] = (20, 40, 60, 80)) -> list[Ran]:
    """Every captured co-run of prefill beside decode, had the GPU this curve; on an H100 shares come in eights."""
    costs = build_costs(msgspec.structs.replace(PAIR, overlap=msgspec.structs.replace(PAIR.overlap, demand_floor=0.0)))
    random, found = np.random.default_rng(0), []
    for corun in coruns("cuda", 1024):
        if corun.kinds != "prefill beside decode":
            continue
        if corun.share_pct is None:
            both = ALONE_S, ALONE_S
            found.append(ran(corun, both, both, (1.0, 1.0)))
        elif corun.share_pct in shares:
            count = -(-corun.share_pct * 132 // 800) * 8
            parts = count / 132, 1.0 - count / 132
            demands = [costs.demands(work_of(timed)) for timed in corun.passes]
            alone = [TRUTH.slowdown(*each, share) for each, share in zip(demands, parts, strict=True)]
            ones = (1.0, 1.0)
            rates = rates_on_shares([Portion(share, True) for share in parts], ones, demands, TRUTH)
            wrong = 1.0 + noise * random.standard_normal((2, 2))
            alone_s = tuple(ALONE_S * slowdown * off for slowdown, off in zip(alone, wrong[:, 0], strict=True))
            together_s = tuple(ALONE_S / rate * off for rate, off in zip(rates, wrong[:, 1], strict=True))
            found.append(ran(corun, alone_s, together_s, ones, parts))
    return found


def curve_of(profile: Profile) -> dict[str, float]:
    assert profile.overlap.partition is not None
    return {name: getattr(profile.overlap.partition, name) for name in BOUNDS}


def test_the_curve_that_cells_follow_comes_back() -> None:
    profile = fit_shares(PAIR, rated())
    assert curve_of(profile) == pytest.approx({name: getattr(TRUTH, name) for name in BOUNDS}, rel=0.01)
    assert profile.errors["partition"].mean_error_pct == pytest.approx(0.0, abs=0.1)


def test_noise_is_stated_as_standard_errors_and_as_the_error_between_the_outer_shares() -> None:
    profile = fit_shares(PAIR, rated(noise=0.03))
    curve = profile.overlap.partition
    assert curve is not None
    assert curve.standard_errors.keys() == BOUNDS.keys()
    for name, error in curve.standard_errors.items():
        assert 0.0 < abs(getattr(curve, name) - getattr(TRUTH, name)) < 3.0 * error
    assert 1.0 < (profile.errors["partition"].mean_error_pct or 0.0) < 6.0
    assert said(curve).startswith("saturated_at 0.4")


def test_a_profile_with_a_curve_is_read_as_it_was_written_and_simulations_use_it() -> None:
    profile = fit_shares(PAIR, rated())
    assert decode(encode(profile), "a profile") == profile
    assert contention_of(profile.overlap).curve == profile.overlap.partition


@pytest.mark.parametrize("shares", [(), (20, 80)])
def test_too_few_shares_leave_the_profile_as_it_was(shares: tuple[int, ...]) -> None:
    assert fit_shares(PAIR, rated(shares=shares)) is PAIR
