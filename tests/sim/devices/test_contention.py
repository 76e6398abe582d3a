"""Rates of works side by side, summed by hand: shares of time, roofs, weights, waits of kernels."""

from __future__ import annotations

import msgspec
import pytest

from sim.costs.forms.build import build_costs
from sim.costs.profile import Overlap, Phi
from sim.costs.profile_files import load
from sim.devices.contention import (
    BRACKET,
    FAVOURED_WAIT_S,
    Contention,
    PhiLevel,
    Regime,
    add_leftover,
    contention_of,
    fill_rates,
    kernel_waits_s,
    phi_at,
    share_time,
    turns_s,
)
from sim.interface.work import Chunk, Kind, Work

ROOFLESS = Contention()


def test_overlap_that_was_measured_is_taken_as_measured() -> None:
    overlap = Overlap(
        eta_compute=0.8, eta_bandwidth=0.9, tau_s=3e-6, takes_turns=True, has_priorities=False, measured=True
    )
    assert contention_of(overlap, Regime.SERIAL) == Contention(
        regime=Regime.ROOFS, eta_compute=0.8, eta_bandwidth=0.9, tau_s=3e-6, takes_turns=True, has_priorities=False
    )


@pytest.mark.parametrize("regime", Regime)
def test_overlap_that_was_not_measured_is_what_one_assumes_and_nothing_more(regime: Regime) -> None:
    overlap = Overlap(eta_compute=0.8, eta_bandwidth=0.9, tau_s=3e-6, has_priorities=False)
    assert contention_of(overlap, regime) == Contention(
        regime=regime,
        phi=0.07 if regime is Regime.LEFTOVER else 0.0,
        eta_compute=1.0,
        eta_bandwidth=1.0,
        tau_s=0.0,
        takes_turns=False,
        has_priorities=False,
    )


def test_overlap_that_was_not_measured_is_leftover_unless_one_assumes_otherwise() -> None:
    assert contention_of(Overlap()) == Contention(
        regime=Regime.LEFTOVER,
        phi=0.07,
        eta_compute=1.0,
        eta_bandwidth=1.0,
        tau_s=0.0,
        takes_turns=False,
        has_priorities=True,
    )


def test_a_phi_that_is_given_goes_before_the_profiles_and_that_before_the_assumed_one() -> None:
    own = Overlap(phi=Phi(value=0.3, low=0.2, high=0.5, source="measured"))
    assert contention_of(own).phi == 0.3
    assert contention_of(own, phi=0.0).phi == 0.0
    profiles = [load(f"{gpu}/llama-3.1-8b+llama-3.2-1b") for gpu in ("a100-sxm", "h100-sxm")]
    profiles.append(msgspec.structs.replace(profiles[1], overlap=own))
    brackets = [[phi_at(profile.phi, level) for level in BRACKET] for profile in profiles]
    assert brackets == [[0.0, 0.07, 0.25], [0.06, 0.1, 0.15], [0.2, 0.3, 0.5]]
    assert [profile.phi.source.startswith("measured") for profile in profiles] == [False, True, True]


def test_kernels_that_are_launched_one_by_one_have_shorter_turns_beside_captured_passes() -> None:
    profile = load("h100-sxm/llama-3.1-8b+llama-3.2-1b-measured")
    prompt = Work(kind=Kind.PREFILL, chunks=(Chunk(64, 0),))
    eager, alike = (build_costs(profile, cuda_graph=each).cost(prompt).num_kernels for each in (True, False))
    host = msgspec.structs.replace(profile.host, captures_chunks=True)
    captured = build_costs(msgspec.structs.replace(profile, host=host)).cost(prompt).num_kernels
    assert [alike / eager, captured] == [pytest.approx(0.74), alike]


def test_the_bracket_goes_from_least_to_most_overlap() -> None:
    assert BRACKET == (PhiLevel.LOW, PhiLevel.MIDDLE, PhiLevel.HIGH)


def test_a_work_goes_on_at_phi_in_the_time_of_the_others_up_to_its_cap() -> None:
    assert add_leftover([0.8, 0.2], [1.0, 1.0], 0.25) == pytest.approx([0.85, 0.4])
    assert add_leftover([0.8, 0.2], [0.8, 0.3], 0.25) == [0.8, 0.3]
    assert add_leftover([0.8, 0.2], [1.0, 1.0], 1.0) == [1.0, 1.0]


def test_a_kernel_beside_others_waits_once_however_many_they_are() -> None:
    assert kernel_waits_s([1.0, 50.0, 100.0], Contention(tau_s=0.01)) == [0.01] * 3


def test_a_kernel_that_takes_turns_waits_for_each_other_work_by_its_share_of_time() -> None:
    """0.1 s per kernel: works of 2 and 5 kernels a second have it for 0.2 and 0.5 of the time, one of 20 for all of
    it and no more."""
    waits_s = kernel_waits_s([2.0, 5.0, 20.0], Contention(tau_s=0.1, takes_turns=True))
    assert waits_s == pytest.approx([0.1 * 1.5, 0.1 * 1.2, 0.1 * 0.7])


def test_what_higher_priorities_leave_is_shared_by_the_lower_ones() -> None:
    assert share_time([1.0, 1.0], [1.0, 3.0], 0.2) == pytest.approx([0.05, 0.15])
    assert share_time([1.0], [1.0], 0.0) == [0.0]


def test_a_kernel_of_the_highest_priority_waits_for_a_part_of_longer_ones_and_for_all_of_shorter_ones() -> None:
    kernels_per_s = [10_000.0, 50_000.0, 20_000.0, 0.0]
    assert turns_s(kernels_per_s, [0, 0, 0, 0]) == pytest.approx([1e-4, 2e-5, 5e-5, 0.0])
    assert turns_s(kernels_per_s, [0, 0, 2, 1]) == pytest.approx([FAVOURED_WAIT_S, 2e-5, 5e-5, 0.0])
    assert turns_s(kernels_per_s, [1, 2, 0, 0]) == pytest.approx([FAVOURED_WAIT_S, 2e-5, FAVOURED_WAIT_S, 0.0])


@pytest.mark.parametrize(
    ("caps", "demands", "rates"),
    [
        # The compute roof: 0.5 and 1 for each unit of rate.
        ([1.0, 1.0], [(0.5, 0.0), (1.0, 0.0)], [2 / 3, 2 / 3]),
        # The bandwidth roof, though compute has room.
        ([1.0, 1.0], [(0.2, 0.5), (0.3, 1.0)], [2 / 3, 2 / 3]),
        # One is at its cap of 0.2; the other takes the 0.8 that are left of the roof.
        ([0.2, 1.0], [(1.0, 0.0), (1.0, 0.0)], [0.2, 0.8]),
        ([0.2, 1.0], [(0.0, 1.0), (0.0, 1.0)], [0.2, 0.8]),
        ([0.4, 0.6, 1.0], [(0.5, 0.0), (0.5, 0.0), (1.0, 0.0)], [0.4, 0.8 / 1.5, 0.8 / 1.5]),
        # Compute is full at 1/2 each; who needs bandwidth alone goes on, to what is left of it.
        ([1.0, 1.0, 1.0], [(1.0, 0.2), (1.0, 0.2), (0.0, 1.0)], [0.5, 0.5, 0.8]),
        # And the other way round.
        ([1.0, 1.0, 1.0], [(0.2, 1.0), (0.2, 1.0), (1.0, 0.0)], [0.5, 0.5, 0.8]),
        # Nothing is asked of either roof.
        ([1.0, 0.5], [(0.0, 0.0), (0.0, 0.0)], [1.0, 0.5]),
        ([1.0], [(1.0, 1.0)], [1.0]),
    ],
)
def test_works_rise_together_until_each_meets_its_cap_or_a_full_roof(
    caps: list[float], demands: list[tuple[float, float]], rates: list[float]
) -> None:
    assert fill_rates(caps, demands, ROOFLESS) == pytest.approx(rates)


@pytest.mark.parametrize(
    ("contention", "rates"),
    [
        (Contention(eta_compute=0.8), [0.4, 0.4]),
        (Contention(eta_bandwidth=0.6), [0.5, 0.5]),
        (Contention(eta_compute=0.8, eta_bandwidth=0.36), [0.3, 0.3]),
    ],
)
def test_roofs_are_what_works_reach_together(contention: Contention, rates: list[float]) -> None:
    assert fill_rates([1.0] * 2, [(1.0, 0.6)] * 2, contention) == pytest.approx(rates)
