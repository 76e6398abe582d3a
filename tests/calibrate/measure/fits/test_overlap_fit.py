"""Contention comes back from rates whose law is known, with and without noise; what no fit used is predicted."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")

from calibrate.fit.grid import Limits, coruns_within
from calibrate.fit.point_works import work_of
from calibrate.fit.points_file import Ran, read
from calibrate.measure.fits.measured_profile import refit
from calibrate.measure.fits.overlap_fit import MIN_PAIRS, beside, fit_overlap, fitted_pairs, halves, predicted
from sim.costs.forms.build import build_costs
from sim.costs.profile import ASSUMED_PHI, HOPPER_PHI, Profile
from sim.costs.profile_files import encode, load
from sim.devices.contention import Contention, Regime, contention_of
from tests.calibrate.measure.co_runs import ran
from tests.properties import some

ROOT = Path(__file__).parents[4]
PAIR = load("h100-sxm/llama-3.1-8b+llama-3.2-1b")
CPU = load("cpu/tiny")
FILES = sorted((ROOT / "docs/validation").glob("*-sxm/*.points.jsonl"))
NUMBER = r"(?<=[:,\[] )-?\d+(?:\.\d+)?(?:e-?\d+)?(?=[,}\]])"
SLOTS = Limits(rows=64, slot_tokens=4096, pass_tokens=4096, draft_tokens=8, has_draft=True, has_graphs=True)
TRUTH = Contention(regime=Regime.LEFTOVER, phi=0.13)
TURNS = Contention(eta_compute=2.0, eta_bandwidth=2.0, tau_s=2e-5, takes_turns=True)


def rated(profile: Profile, contention: Contention, limits: Limits, noise: float = 0.0, turn: float = 1.0) -> list[Ran]:
    """Every co-run, had its passes the profile's costs and run beside each other as `contention` and `turn` have it."""
    floorless = msgspec.structs.replace(profile.overlap, demand_floor=0.0, phi=ASSUMED_PHI)
    costs = build_costs(msgspec.structs.replace(profile, overlap=floorless))
    random, found = np.random.default_rng(1), []
    for corun in coruns_within(limits):
        alone_s = tuple(costs.cost(work_of(timed)).device_s for timed in corun.passes)
        ones = (1.0,) * len(corun.passes)
        rates = np.array(predicted(contention, beside(costs, ran(corun, alone_s, ones)), turn))
        wrong = np.exp(noise * random.standard_normal(len(rates)))
        found.append(ran(corun, alone_s, (rates * wrong).tolist()))
    return found


def test_contention_behind_rates_is_found_again_and_three_passes_are_predicted_from_pairs() -> None:
    rates = rated(PAIR, TRUTH, SLOTS, turn=0.7)
    *_, three = rates
    assert len(three.rates) == 3
    assert max(three.rates) < 0.9
    fitted = fit_overlap(PAIR, rates)
    phi = some(fitted.overlap.phi)
    assert (phi.low, phi.value, phi.high, phi.turn) == pytest.approx((0.13, 0.13, 0.13, 0.7), abs=0.001)
    assert contention_of(fitted.overlap) == TRUTH
    error = fitted.errors["overlap_three"]
    assert (error.points, error.mean_error_pct) == (3, pytest.approx(0.0, abs=1.0))
    without = fit_overlap(PAIR, rates[:-1])
    assert without.overlap == fitted.overlap
    assert "overlap_three" not in without.errors


def test_noise_is_stated_as_the_error_on_pairs_that_the_fit_did_not_use() -> None:
    rates = rated(PAIR, TRUTH, SLOTS, noise=0.03)
    fitted = fit_overlap(PAIR, rates)
    error, phi = fitted.errors["overlap"], fitted.overlap.phi
    assert phi is not None
    assert 0.12 < phi.low <= phi.value <= phi.high < 0.14
    assert error.points == 2 * len(halves(fitted_pairs(rates))[1]) >= 8
    assert 1.0 < (error.mean_error_pct or 0.0) < 6.0


def test_of_every_kind_some_pairs_are_fitted_and_some_held_out() -> None:
    used, held_out = halves(fitted_pairs(rated(PAIR, TRUTH, SLOTS)))
    kinds = {"prefill beside decode", "draft beside verify"}
    assert {ran.corun.kinds for ran in used} == {ran.corun.kinds for ran in held_out} == kinds
    assert abs(len(used) - len(held_out)) <= 1


def test_a_fit_uses_captured_pairs_on_the_whole_device_where_there_are_any() -> None:
    both = (1.0, 1.0)
    captured, eager = (
        [each for each in coruns_within(limits) if len(each.passes) == 2 and each.is_captured is limits.has_graphs]
        for limits in (SLOTS, SLOTS._replace(has_graphs=False))
    )
    others = [captured[0]._replace(share_pct=20), captured[0]._replace(favoured=1)]
    rates = [ran(corun, both, both) for corun in (*others, *captured, *eager)]
    assert [ran.corun for ran in fitted_pairs(rates)] == captured
    assert [ran.corun for ran in fitted_pairs(rates[-len(eager) :])] == eager


def test_on_a_cpu_works_have_a_core_each_and_the_length_of_a_turn_is_found_again() -> None:
    limits = SLOTS._replace(rows=16, slot_tokens=512, pass_tokens=512, has_graphs=False)
    fitted = fit_overlap(CPU, rated(CPU, TURNS, limits, noise=0.02), cores=2.0)
    assert contention_of(fitted.overlap) == msgspec.structs.replace(TURNS, tau_s=fitted.overlap.tau_s)
    assert fitted.overlap.tau_s == pytest.approx(TURNS.tau_s, rel=0.2)


def test_a_few_pairs_fit_nothing() -> None:
    rates = rated(PAIR, TRUTH, SLOTS)
    assert fit_overlap(PAIR, rates[: MIN_PAIRS - 1]) is PAIR
    assert fit_overlap(PAIR, rates[:MIN_PAIRS]).overlap.phi is not None


def test_what_two_gpus_measured_is_within_the_range_that_their_profiles_simulate() -> None:
    for gpu, turn in (("h200", 0.76), ("h100", 0.6)):
        profile = load(f"{gpu}-sxm/llama-3.1-8b+llama-3.2-1b-measured")
        points = ROOT / "docs" / "validation" / f"{gpu}-sxm" / "llama-3.1-8b+llama-3.2-1b.points.jsonl"
        phi = some(fit_overlap(profile, read(points).rates).overlap.phi)
        assert HOPPER_PHI.low <= phi.low < phi.value < phi.high <= HOPPER_PHI.high
        assert phi.turn == pytest.approx(turn, abs=0.03)


@pytest.mark.filterwarnings("ignore::sim.costs.extrapolation.OutsideProfileWarning")
@pytest.mark.parametrize("path", FILES, ids=[path.parent.name for path in FILES])
def test_a_shipped_measured_profile_is_the_refit_of_its_committed_points(path: Path) -> None:
    """Kernels, host, errors and source. Another BLAS may round the last of four digits."""
    shipped = load(f"{path.parent.name}/{path.name.partition('.points')[0]}-measured")
    held, fresh = (encode(each).decode() for each in (shipped, refit(read(path), shipped)))
    assert re.sub(NUMBER, "", fresh) == re.sub(NUMBER, "", held)
    numbers, others = ([*map(float, re.findall(NUMBER, text))] for text in (held, fresh))
    assert others == pytest.approx(numbers, rel=2e-3)
