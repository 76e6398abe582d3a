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

PLAIN = ShareCurve(saturated_at=0.75, queue_slowdown=0.0, bandwidth_together=1.0, source="made up", errors_pct={})
"""A reader takes 4 / 3 as long on 9 / 16 of the multiprocessors; neighbours share nothing but the bandwidth."""
COMPUTE, READ = Demands(1.0, 0.0), Demands(0.0, 1.0)


class ByKind(ConstantCosts, frozen=True, kw_only=True):
    """Constant costs, and demands by the kind of a work."""

    asks: dict[Kind, Demands]

    def demands(self, work: Work) -> Demands:
        return self.asks[work.kind]


def host(demands: Demands | dict[Kind, Demands], curve: ShareCurve = PLAIN, **costs: Any) -> SimHost:
    asks = demands if isinstance(demands, dict) else dict.fromkeys(Kind, demands)
    return SimHost(ByKind(device_s=SECONDS, asks=asks, **costs), PeriodicDraws(), contention=Contention(curve=curve))


@pytest.mark.parametrize(
    ("demands", "end_s"),
    [
        (COMPUTE, 5.0 / 0.5625),
        # (1 + (4/3)^2)^(1/2) = 5/3 beside (1 + (3/4)^2)^(1/2) = 5/4 on the whole device.
        (READ, 5.0 * 4.0 / 3.0),
        # A quarter compute, three quarters bandwidth.
        (Demands(0.1, 0.3), 1.25 / 0.5625 + 3.75 * 4.0 / 3.0),
        (Demands(0.0, 0.0), 5.0),
    ],
)
def test_a_share_that_is_idle_helps_nobody(demands: Demands, end_s: float) -> None:
    machine = host(demands)
    verify = machine.run(VERIFY, machine.stream("a", sm_share=0.5625))
    machine.run_until()
    beside_idle = host(demands)
    a, _ = beside_idle.stream("a", sm_share=0.5625), beside_idle.stream("b", sm_share=0.4375)
    again = beside_idle.run(VERIFY, a)
    beside_idle.run_until()
    assert times(verify) == times(again) == [(0.0, pytest.approx(end_s))]


def test_the_whole_device_as_a_share_is_the_whole_device() -> None:
    for demands in (COMPUTE, READ, Demands(0.3, 0.9), Demands(0.0, 0.0)):
        machine = host(demands, MEASURED)
        stream = machine.stream("a", sm_share=1.0)
        tickets = [machine.run(work, stream) for work in (DRAFT, VERIFY, PREFILL)]
        machine.run_until()
        assert [ticket.end_s for ticket in tickets] == pytest.approx([2.0, 7.0, 17.0])


ASKS = {Kind.DRAFT: Demands(0.0, 0.6), Kind.VERIFY: Demands(0.0, 0.3), Kind.PREFILL: Demands(0.9, 0.0)}
QUEUED = {Kind.DRAFT: READ, Kind.VERIFY: COMPUTE, Kind.PREFILL: READ}
Asks = Demands | dict[Kind, Demands]
BESIDE: dict[str, tuple[Asks, dict[str, float], tuple[float | None, ...], tuple[Work, ...], list[float]]] = {
    # A draft of 2 s and a verify of 5 s on halves: the other half stays behind.
    "compute on two halves is as fast as one after the other": (COMPUTE, {}, (0.5, 0.5), (DRAFT, VERIFY), [4, 10]),
    # Readers on parts that read at 3/4 each share the roof; once one is through, 3/4 again.
    "readers share the bandwidth and one left alone gets what its share can take": (
        READ, {"saturated_at": 0.0001}, (0.5, 0.5), (DRAFT, VERIFY), [4, 7]
    ),
    # Demands of 0.6, 0.3 and none under a roof of 0.6, that of the first alone: two thirds of what they ask for. The
    # verify did two of its 5 s meanwhile; alone it stays below the roof.
    "bandwidth goes by what each would read and who reads none keeps its pace": (
        ASKS, {"saturated_at": 0.0001, "bandwidth_together": 0.4},
        (0.25, 0.25, 0.5), (DRAFT, VERIFY, PREFILL), [3, 6, 20],
    ),
    # Half a device for two: alone at rate 1/2, together at 1/4 each.
    "streams without a share divide the time of what is left": (
        COMPUTE, {}, (0.5, None, None), (PREFILL, DRAFT, VERIFY), [20, 8, 14]
    ),
    # Beside a reader on half a device compute is slowed 1 + 4 * 1/2 times, until the reader has ended.
    "compute beside a reader waits in its queue and bandwidth does not": (
        QUEUED, {"saturated_at": 0.0001, "queue_slowdown": 4.0}, (0.5, 0.5), (DRAFT, VERIFY), [2, 2 + 2 * (5 - 2 / 6)]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("asks", "curve", "shares", "works", "ends_s"), BESIDE.values(), ids=BESIDE)
def test_works_on_shares_end_as_summed_by_hand(
    asks: Asks, curve: dict[str, float], shares: tuple[float | None, ...], works: tuple[Work, ...], ends_s: list[float]
) -> None:
    machine = host(asks, msgspec.structs.replace(PLAIN, **curve))
    streams = [machine.stream(name, sm_share=share) for name, share in zip("abc", shares, strict=False)]
    tickets = [machine.run(work, stream) for work, stream in zip(works, streams, strict=True)]
    machine.run_until()
    assert [ticket.end_s for ticket in tickets] == pytest.approx(ends_s)


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
        ({"a": 0.7, "b": 0.4}, "shares sum to 1.1 and must sum to at most 1: a 0.7, b 0.4"),
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
        # LLaMA 7B on an A100 by MPS share (MuxServe): prefill of 512, decode of one row, of 128 rows.
        ((0.80, 0.29), 0.3, 2.75, 0.05),
        ((0.80, 0.29), 0.5, 1.84, 0.07),
        ((0.01, 0.76), 0.3, 1.38, 0.01),
        ((0.15, 0.62), 0.3, 1.82, 0.05),
        # Llama-3.1-8B on green contexts of an H100: prefill of 2,048, decode of one row, of 128 rows.
        ((0.65, 0.43), 32 / 132, 2.95, 0.05),
        ((0.00, 0.75), 20 / 132, 1.76, 0.25),
        ((0.18, 0.79), 20 / 132, 3.10, 0.10),
    ],
)
def test_the_curves_are_those_that_were_measured(
    demands: tuple[float, float], share: float, measured: float, tolerance: float
) -> None:
    assert MEASURED.slowdown(*demands, share) == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(("reader_sms", "measured"), [(8, 1.02), (24, 1.15), (48, 1.62), (68, 2.06)])
def test_a_prefill_beside_a_reader_is_about_as_slow_as_measured(reader_sms: int, measured: float) -> None:
    """Attention of 4,096 tokens on 64 of 132 SMs of a GH200 (MonoServe)."""
    prefill = (0.303, 0.072)
    alone, beside = (MEASURED.slowdown(*prefill, 64 / 132, reading=sms / 132) for sms in (0, reader_sms))
    assert beside / alone == pytest.approx(measured, rel=0.18)


share = st.integers(1, 20).map(lambda value: value / 20)
demand = st.integers(0, 20).map(lambda value: value / 20)
work = st.tuples(share, st.floats(0.01, 1.0), demand, demand)


def _rates(works: list[tuple[float, float, float, float]], scale: float = 1.0) -> list[float]:
    """Works as (share, cap, compute, bandwidth), shares scaled to fit."""
    total = max(1.0, sum(own for own, *_ in works))
    places = [Portion(scale * own / total, True) for own, *_ in works]
    demands = [(compute, bandwidth) for *_, compute, bandwidth in works]
    return rates_on_shares(places, [cap for _, cap, *_ in works], demands, MEASURED)


@given(works=st.lists(work, min_size=1, max_size=4))
def test_rates_keep_to_their_caps_and_to_the_bandwidth_roof(works: list[tuple[float, float, float, float]]) -> None:
    rates = _rates(works)
    for rate, (_, cap, *_) in zip(rates, works, strict=True):
        assert 0.0 < rate <= cap
    if len(works) > 1:
        roof = max(MEASURED.bandwidth_together, *(bandwidth for *_, bandwidth in works))
        assert sum(rate * w[3] for rate, w in zip(rates, works, strict=True)) <= roof + 1e-9


@given(one=work, more=share, others=st.lists(work, max_size=3))
def test_more_multiprocessors_are_never_slower(
    one: tuple[float, float, float, float], more: float, others: list[tuple[float, float, float, float]]
) -> None:
    total = max(1.0, one[0] + more + sum(own for own, *_ in others))
    neighbours = [Portion(own / total, True) for own, *_ in others]
    caps, demands = [one[1], *(w[1] for w in others)], [one[2:], *(w[2:] for w in others)]
    less, greater = (
        rates_on_shares([Portion(own / total, True), *neighbours], caps, demands, MEASURED)[0]
        for own in (one[0], one[0] + more)
    )
    assert greater >= less - 1e-12


@given(compute=demand, bandwidth=demand, own=st.floats(0.05, 0.5), reading=demand)
def test_only_compute_waits_behind_a_reader_and_only_behind_one_that_reads(
    compute: float, bandwidth: float, own: float, reading: float
) -> None:
    alone, beside = (MEASURED.slowdown(compute, bandwidth, own, reading=each) for each in (0.0, reading))
    if compute == 0.0 or reading == 0.0:
        assert beside == alone
    else:
        assert beside > alone


@given(works=st.lists(work, min_size=1, max_size=4))
def test_compute_on_shares_is_never_faster_in_all_than_the_device(
    works: list[tuple[float, float, float, float]],
) -> None:
    rates = _rates([(own, 1.0, 1.0, 0.0) for own, *_ in works])
    assert sum(rates) <= 1.0 + 1e-9
