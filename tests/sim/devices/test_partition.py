"""Shares of the multiprocessors: solo curves, what neighbours do, bandwidth under its roof; hand-summed on a device."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.cost import Demands, Link
from sim.costs.profile import ShareCurve
from sim.devices.contention import Contention
from sim.devices.partition import MEASURED, Portion, rates_on_shares
from sim.hosts.simulated import SimHost
from sim.interface.work import Kind, Work
from tests.sim.constant_costs import ConstantCosts
from tests.sim.devices.test_devices import DRAFT, PREFILL, VERIFY, times
from tests.sim.support import SECONDS, PeriodicDraws

LINEAR = ShareCurve(
    sharpness=1.0,
    latency_demand=0.0,
    boosted=1.0,
    boosted_below=1.0,
    parallel_bandwidth=0.5,
    queue_slowdown=0.0,
    queue_power=2.0,
    source="made up",
    errors_pct={},
)
"""Compute goes like 1 / share, half of a reader's time likewise, and neighbours share nothing but the bandwidth."""
COMPUTE, READ = Demands(1.0, 0.0), Demands(0.0, 1.0)


class ByKind(ConstantCosts, frozen=True, kw_only=True):
    """Constant costs, and demands by the kind of a work."""

    asks: dict[Kind, Demands]

    def demands(self, work: Work) -> Demands:
        return self.asks[work.kind]


def host(demands: Demands | dict[Kind, Demands], curve: ShareCurve = LINEAR, eta: float = 1.0, **costs: Any) -> SimHost:
    asks = demands if isinstance(demands, dict) else dict.fromkeys(Kind, demands)
    return SimHost(
        ByKind(device_s=SECONDS, asks=asks, **costs),
        PeriodicDraws(),
        contention=Contention(eta_bandwidth=eta, curve=curve),
    )


@pytest.mark.parametrize(
    ("demands", "end_s"),
    [
        (COMPUTE, 5.0 / 0.25),
        # Half of the time is memory's pace, the other half quadruples.
        (READ, 2.5 + 2.5 / 0.25),
        # Half compute, half bandwidth.
        (Demands(0.5, 0.5), 2.5 / 0.25 + 1.25 + 1.25 / 0.25),
    ],
)
def test_a_share_that_is_idle_helps_nobody(demands: Demands, end_s: float) -> None:
    machine = host(demands)
    verify = machine.run(VERIFY, machine.stream("a", sm_share=0.25))
    machine.run_until()
    beside_idle = host(demands)
    a, _ = beside_idle.stream("a", sm_share=0.25), beside_idle.stream("b", sm_share=0.75)
    again = beside_idle.run(VERIFY, a)
    beside_idle.run_until()
    assert times(verify) == times(again) == [(0.0, end_s)]


def test_the_whole_device_as_a_share_is_the_whole_device() -> None:
    for demands in (COMPUTE, READ, Demands(0.3, 0.9), Demands(0.0, 0.0)):
        machine = host(demands, MEASURED)
        stream = machine.stream("a", sm_share=1.0)
        tickets = [machine.run(work, stream) for work in (DRAFT, VERIFY, PREFILL)]
        machine.run_until()
        assert [ticket.end_s for ticket in tickets] == pytest.approx([2.0, 7.0, 17.0])


def test_compute_on_two_halves_is_as_fast_as_one_after_the_other() -> None:
    """A draft of 2 s and a verify of 5 s on halves end at 4 s and 10 s: the other half stays behind."""
    machine = host(COMPUTE)
    a, b = machine.stream("a", sm_share=0.5), machine.stream("b", sm_share=0.5)
    tickets = [machine.run(DRAFT, a), machine.run(VERIFY, b)]
    machine.run_until()
    assert times(*tickets) == [(0.0, 4.0), (0.0, 10.0)]


def test_readers_share_the_bandwidth_and_one_left_alone_gets_what_its_share_can_take() -> None:
    """On halves each could read at 2/3, together they have half each; when the draft ends the verify has 3 s left."""
    machine = host(READ)
    a, b = machine.stream("a", sm_share=0.5), machine.stream("b", sm_share=0.5)
    tickets = [machine.run(DRAFT, a), machine.run(VERIFY, b)]
    machine.run_until()
    assert [ticket.end_s for ticket in tickets] == pytest.approx([4.0, 4.0 + 3.0 * 1.5])


def test_who_asks_for_little_bandwidth_gets_it() -> None:
    """Readers of 0.9 each on halves fill a roof of 1 beside a third stream that wants 0.1 of it."""
    asks = {Kind.DRAFT: Demands(0.0, 0.9), Kind.VERIFY: Demands(0.0, 0.9), Kind.PREFILL: Demands(0.9, 0.1)}
    machine = host(asks, msgspec.structs.replace(LINEAR, parallel_bandwidth=0.0))
    streams = [machine.stream(name, sm_share=share) for name, share in (("a", 0.25), ("b", 0.25), ("c", 0.5))]
    draft, verify, prefill = [machine.run(w, s) for w, s in zip((DRAFT, VERIFY, PREFILL), streams, strict=True)]
    machine.run_until()
    # The prefill is nine parts compute at 1/2 and one part bandwidth: 1.9 times its 10 s.
    assert prefill.end_s == pytest.approx(19.0)
    # The others have what it leaves, (1 - 0.1 / 1.9) / 2 each, of their 0.9.
    rate = (1.0 - 0.1 / 1.9) / 2.0 / 0.9
    assert draft.end_s == pytest.approx(2.0 / rate)
    assert verify.end_s == pytest.approx(draft.end_s + (5.0 - 2.0) / 1.0)


def test_streams_without_a_share_divide_the_time_of_what_is_left() -> None:
    """Half a device for two: alone at rate 1/2, together at 1/4 each. The draft ends at 8 s, the verify at 14 s."""
    machine = host(COMPUTE)
    a = machine.stream("a", sm_share=0.5)
    b, c = machine.stream("b"), machine.stream("c")
    tickets = [machine.run(PREFILL, a), machine.run(DRAFT, b), machine.run(VERIFY, c)]
    machine.run_until()
    assert times(*tickets) == [(0.0, 20.0), (0.0, 8.0), (0.0, 14.0)]


def test_compute_beside_a_reader_waits_in_its_queue_and_bandwidth_does_not() -> None:
    """Beside a reader on half a device compute is slowed 1 + 4 * (1/2)^2 times, until the reader has ended."""
    asks = {Kind.DRAFT: READ, Kind.VERIFY: COMPUTE, Kind.PREFILL: READ}
    machine = host(asks, msgspec.structs.replace(LINEAR, queue_slowdown=4.0))
    a, b = machine.stream("a", sm_share=0.5), machine.stream("b", sm_share=0.5)
    draft, verify = machine.run(DRAFT, a), machine.run(VERIFY, b)
    machine.run_until()
    assert draft.end_s == pytest.approx(3.0)
    assert verify.end_s == pytest.approx(3.0 + 2.0 * (5.0 - 3.0 / 4.0))


def test_the_clock_is_higher_while_less_of_the_device_computes() -> None:
    """At most half of the device computes: rate 0.5 / 0.8. Both halves: 0.5 each. A verify beside a draft of 2 s."""
    machine = host(COMPUTE, msgspec.structs.replace(LINEAR, boosted=0.8, boosted_below=0.5))
    a, b = machine.stream("a", sm_share=0.5), machine.stream("b", sm_share=0.5)
    draft, verify = machine.run(DRAFT, a), machine.run(VERIFY, b)
    machine.run_until()
    assert draft.end_s == pytest.approx(4.0)
    assert verify.end_s == pytest.approx(4.0 + 3.0 / 0.625)


@pytest.mark.parametrize(("launch_s", "ends"), [(8.0, [(0.0, 8.0), (8.0, 18.0)]), (3.0, [(0.0, 4.0), (4.0, 14.0)])])
def test_a_work_on_a_share_cannot_outrun_its_launch(launch_s: float, ends: list[tuple[float, float]]) -> None:
    """A draft of 2 s and a verify of 5 s on half a device, each launched over `launch_s`."""
    machine = host(COMPUTE, launch_s=launch_s)
    stream = machine.stream("a", sm_share=0.5)
    tickets = [machine.run(DRAFT, stream), machine.run(VERIFY, stream)]
    machine.run_until()
    assert times(*tickets) == ends


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"a": 0.7, "b": 0.4}, "shares sum to 1.1, want at most 1: a 0.7, b 0.4"),
        ({"a": 1.5}, "share of 'a': 1.5 must be above 0 and at most 1"),
        ({"a": 0.6, "b": 0.4, "c": None}, "stream 'c' has no sm_share, and the others leave nothing: a 0.6, b 0.4"),
    ],
)
def test_shares_that_do_not_fit_are_refused(shares: dict[str, float | None], message: str) -> None:
    def run_on_first() -> None:
        machine = host(COMPUTE)
        streams = [machine.stream(name, sm_share=share) for name, share in shares.items()]
        machine.run(DRAFT, streams[0])

    with pytest.raises(ValueError, match=message):
        run_on_first()


def test_a_link_has_no_multiprocessors() -> None:
    machine = SimHost(
        ConstantCosts(device_s=SECONDS), PeriodicDraws(), links={"tcp": Link(latency_s=0.0, bytes_per_s=1.0)}
    )
    with pytest.raises(ValueError, match="link 'tcp', which is no GPU"):
        machine.stream("kv", device="tcp", sm_share=0.5)


@pytest.mark.parametrize(
    ("demands", "share", "measured", "tolerance"),
    [
        # LLaMA 7B on an A100 by MPS share (MuxServe): prefill of 16 x 512 tokens, decode of one row, of 128 rows.
        ((0.96, 0.08), 0.3, 2.67, 0.08),
        ((0.96, 0.08), 0.5, 1.65, 0.04),
        ((0.01, 0.76), 0.3, 1.41, 0.03),
        ((0.30, 0.58), 0.3, 1.82, 0.10),
        # Prefill attention of 131,072 tokens on a GH200 by green context (MonoServe).
        ((0.69, 0.01), 8 / 132, 13.3, 0.07),
    ],
)
def test_the_curves_are_those_that_were_measured(
    demands: tuple[float, float], share: float, measured: float, tolerance: float
) -> None:
    assert MEASURED.slowdown(MEASURED.mix(*demands), share) == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(
    ("reader_sms", "measured"), [(8, 1.02), (16, 1.06), (24, 1.15), (32, 1.27), (48, 1.62), (64, 1.98), (68, 2.06)]
)
def test_a_prefill_beside_a_reader_is_as_slow_as_measured(reader_sms: int, measured: float) -> None:
    """Attention of 4,096 tokens on 64 of 132 SMs of a GH200 (MonoServe)."""
    prefill, reader = (0.303, 0.072), (0.0, 1.0)
    alone, *_ = rates_on_shares([Portion(64 / 132, True)], [1.0], [prefill], MEASURED, 1.0)
    places = [Portion(64 / 132, True), Portion(reader_sms / 132, True)]
    beside, _ = rates_on_shares(places, [1.0] * 2, [prefill, reader], MEASURED, 10.0)
    assert alone / beside == pytest.approx(measured, rel=0.05)


share = st.integers(1, 20).map(lambda value: value / 20)
demand = st.integers(0, 20).map(lambda value: value / 20)
work = st.tuples(share, st.floats(0.01, 1.0), demand, demand)


def _rates(works: list[tuple[float, float, float, float]], scale: float = 1.0, eta: float = 1.0) -> list[float]:
    """Works as (share, cap, compute, bandwidth), shares scaled to fit."""
    total = max(1.0, sum(own for own, *_ in works))
    places = [Portion(scale * own / total, True) for own, *_ in works]
    demands = [(compute, bandwidth) for *_, compute, bandwidth in works]
    return rates_on_shares(places, [cap for _, cap, *_ in works], demands, MEASURED, eta)


@given(works=st.lists(work, min_size=1, max_size=4), eta=st.floats(0.3, 1.5))
def test_rates_keep_to_their_caps_and_to_the_bandwidth_roof(
    works: list[tuple[float, float, float, float]], eta: float
) -> None:
    rates = _rates(works, eta=eta)
    for rate, (_, cap, *_) in zip(rates, works, strict=True):
        assert 0.0 < rate <= cap
    if len(works) > 1:
        assert sum(rate * w[3] for rate, w in zip(rates, works, strict=True)) <= eta + 1e-9


@given(one=work, more=share, others=st.lists(work, max_size=3))
def test_more_multiprocessors_are_never_slower(
    one: tuple[float, float, float, float], more: float, others: list[tuple[float, float, float, float]]
) -> None:
    total = max(1.0, one[0] + more + sum(own for own, *_ in others))
    neighbours = [Portion(own / total, True) for own, *_ in others]
    caps, demands = [one[1], *(w[1] for w in others)], [one[2:], *(w[2:] for w in others)]
    less, greater = (
        rates_on_shares([Portion(own / total, True), *neighbours], caps, demands, MEASURED, 1.0)[0]
        for own in (one[0], one[0] + more)
    )
    assert greater >= less - 1e-12


@given(compute=demand, bandwidth=demand, own=st.floats(0.05, 0.5), other=work)
def test_only_compute_waits_behind_a_reader_and_only_behind_one_that_reads(
    compute: float, bandwidth: float, own: float, other: tuple[float, float, float, float]
) -> None:
    """Where the bandwidth suffices and no other computes."""
    places = [Portion(own, True), Portion(other[0] / 2, True)]
    alone, *_ = rates_on_shares(places[:1], [1.0], [(compute, bandwidth)], MEASURED, 2.0)
    beside, _ = rates_on_shares(places, [1.0] * 2, [(compute, bandwidth), (0.0, other[3])], MEASURED, 2.0)
    if compute == 0.0 or other[3] == 0.0:
        assert beside == alone
    else:
        assert beside < alone


@given(works=st.lists(work, min_size=1, max_size=4))
def test_compute_on_shares_is_never_faster_in_all_than_the_device(
    works: list[tuple[float, float, float, float]],
) -> None:
    """But for a hundredth, which is latency."""
    rates = _rates([(own, 1.0, 1.0, 0.0) for own, *_ in works])
    assert sum(rates) <= 1.02
