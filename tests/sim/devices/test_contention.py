"""Rates of works side by side, summed by hand: shares of time, roofs, weights, waits of kernels."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.cost import Cost
from sim.costs.forms.build import build_costs
from sim.costs.profile import Overlap, Phi
from sim.costs.profile_files import load
from sim.devices.contention import (
    BRACKET,
    Contention,
    Regime,
    contention_of,
    phi_at,
    plain_rates,
)
from sim.devices.ticket import SimTicket
from sim.hosts.simulated import SimHost
from sim.interface.work import Chunk, Kind, Work
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import PeriodicDraws


def test_overlap_that_was_measured_is_taken_as_measured() -> None:
    overlap = Overlap(
        eta_compute=0.8, eta_bandwidth=0.9, tau_s=3e-6, takes_turns=True, has_priorities=False, measured=True
    )
    assert contention_of(overlap, Regime.SERIAL) == Contention(
        regime=Regime.ROOFS, eta_compute=0.8, eta_bandwidth=0.9, tau_s=3e-6, takes_turns=True, has_priorities=False
    )


@pytest.mark.parametrize("regime", [None, *Regime])
def test_overlap_that_was_not_measured_is_what_one_assumes_and_else_leftover(regime: Regime | None) -> None:
    overlap = Overlap(eta_compute=0.8, eta_bandwidth=0.9, tau_s=3e-6, has_priorities=regime is None)
    assert contention_of(overlap, regime) == Contention(
        regime=regime or Regime.LEFTOVER,
        phi=0.07 if regime in (None, Regime.LEFTOVER) else 0.0,
        eta_compute=1.0,
        eta_bandwidth=1.0,
        tau_s=0.0,
        takes_turns=False,
        has_priorities=regime is None,
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


def test_a_work_goes_on_at_phi_while_anothers_kernels_hold_the_device() -> None:
    """Kernels of 3 and 1 ms have 3/4 and 1/4 of the time. At phi = 1/4 they also have 1/4 of the rest, up to a cap."""
    leftover = Contention(regime=Regime.LEFTOVER, phi=0.25)
    kernels_per_s = [1e3 / 3.0, 1e3]
    assert plain_rates([1.0, 1.0], [0, 0], kernels_per_s, [], leftover) == [0.8125, 0.4375]
    assert plain_rates([0.8, 1.0], [0, 0], kernels_per_s, [], leftover) == [0.8, 0.4375]


def test_kernels_that_are_launched_one_by_one_have_shorter_turns_beside_captured_passes() -> None:
    profile = load("h100-sxm/llama-3.1-8b+llama-3.2-1b-measured")
    prompt = Work(kind=Kind.PREFILL, chunks=(Chunk(64, 0),))
    eager, alike = (build_costs(profile, cuda_graph=each).cost(prompt).num_kernels for each in (True, False))
    host = msgspec.structs.replace(profile.host, captures_chunks=True)
    captured = build_costs(msgspec.structs.replace(profile, host=host)).cost(prompt).num_kernels
    assert [alike / eager, captured] == [pytest.approx(0.74), alike]


@given(
    works=st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(0, 2), st.floats(0.1, 1e5)), min_size=2, max_size=3),
    has_priorities=st.booleans(),
)
def test_nothing_left_over_is_serial_to_the_last_bit(
    works: list[tuple[float, int, float]], has_priorities: bool
) -> None:
    caps, priorities, kernels_per_s = zip(*works, strict=True)
    serial, leftover = (
        plain_rates(
            caps, priorities, kernels_per_s, [], contention_of(Overlap(has_priorities=has_priorities), each, 0.0)
        )
        for each in (Regime.SERIAL, Regime.LEFTOVER)
    )
    assert serial == leftover


LENGTHS = st.tuples(st.integers(0, 24).map(lambda value: value / 8), st.floats(0.1, 9.0), st.integers(1, 50))


@given(works=st.lists(LENGTHS, min_size=2, max_size=4), phis=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)))
def test_no_work_ends_later_the_more_is_left_over(
    works: list[tuple[float, float, int]], phis: tuple[float, float]
) -> None:
    """One work per stream, submitted at times of their own."""

    class Kernels(ConstantCosts):
        def cost(self, work: Work) -> Cost:
            _, device_s, num_kernels = works[work.num_bytes]
            return Cost(0.0, 0.0, device_s, num_kernels)

    def ends_s(phi: float) -> list[float]:
        host = SimHost(Kernels(device_s={}), PeriodicDraws(), contention=Contention(regime=Regime.LEFTOVER, phi=phi))
        streams = [host.stream(f"s{place}") for place in range(len(works))]
        tickets: dict[int, SimTicket] = {}

        def submit(place: int) -> None:
            tickets[place] = host.run(Work(kind=Kind.VERIFY, num_bytes=place), streams[place])

        for place, (start_s, _, _) in enumerate(works):
            host.at(start_s, lambda _, place=place: submit(place))
        host.run_until()
        return [tickets[place].end_s for place in range(len(works))]

    for early, late in zip(ends_s(max(phis)), ends_s(min(phis)), strict=True):
        assert early <= late + 1e-9
