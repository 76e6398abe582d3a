"""Costs in service, summed by hand: pauses, cold caches, workers that poll, and issuing that is executing."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

import msgspec
import pytest

from sim.costs.engine_costs import MEASURED_HERE
from sim.costs.forms.build import build_costs
from sim.costs.in_service import SHORT_PAUSE_S, HistoryCosts, kind_in_service, with_history
from sim.costs.profile import SERVED_KINDS, IdleRamp, Profile
from sim.costs.profile_files import load
from sim.devices.contention import contention_of
from sim.hosts.simulated import SimHost
from sim.interface.host import Stream
from sim.interface.work import Chunk, Kind, Model, Work
from tests.sim.support import PeriodicDraws

TINY = load("cpu/tiny")
VERIFY = Work(kind=Kind.VERIFY, rows=2, row_tokens=10, context_tokens=100, head_rows=10)
DRAFT = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=2, row_tokens=2, context_tokens=100, head_rows=2, draft_tokens=4)
RAMP = IdleRamp(lost_s=0.008, pause_s=0.02, work_s=0.005)


def changed(**host: object) -> Profile:
    return msgspec.structs.replace(TINY, host=msgspec.structs.replace(TINY.host, **host))


@dataclass
class Moment:
    """What a host tells."""

    now_s: float = 0.0
    looks_per_s: float = 0.0
    submitting: str = "gpu"


def in_service(moment: Moment | None = None, **host: object) -> HistoryCosts:
    profile = changed(**host)
    return HistoryCosts(build_costs(profile), profile.host, moment or Moment())


def test_a_profile_that_knows_nothing_of_service_prices_as_it_is() -> None:
    costs = build_costs(TINY)
    assert with_history(costs, Moment()) is costs
    for known in ({"idle_ramp": RAMP}, {"served": {"verify": 1.2}}, {"look_s": 1e-5}):
        assert isinstance(with_history(build_costs(changed(**known)), Moment()), HistoryCosts)


def test_a_pass_takes_longer_in_service_by_its_kind() -> None:
    costs, bare = in_service(served={"verify": 1.25, "draft": 0.9}), build_costs(TINY)
    decode = Work(kind=Kind.STEP, rows=2, row_tokens=2, context_tokens=100, head_rows=2)
    ratios = [costs.cost(work).device_s / bare.cost(work).device_s for work in (VERIFY, DRAFT, decode)]
    assert ratios == pytest.approx([1.25, 0.9, 1.0])


def test_every_work_has_a_kind_in_service() -> None:
    chunks = (Chunk(8, 0),)
    works = {
        "prefill": Work(kind=Kind.STEP, chunks=chunks, head_rows=1),
        "decode": Work(kind=Kind.STEP, rows=2, row_tokens=2, head_rows=3, chunks=chunks),
        "verify": VERIFY,
        "draft": DRAFT,
        "draft_prefill": Work(kind=Kind.PREFILL, model=Model.DRAFT, chunks=chunks),
    }
    assert {name: kind_in_service(work) for name, work in works.items()} == {name: name for name in SERVED_KINDS}


def test_what_a_pause_costs_is_lost_little_by_little_and_once() -> None:
    """8 ms after a pause without end, of which a work of d seconds loses 1 - exp(-d / 5 ms)."""
    costs = in_service(Moment(now_s=1e9), idle_ramp=RAMP)
    device_s = build_costs(TINY).cost(VERIFY).device_s
    share = 1.0 - exp(-device_s / RAMP.work_s)
    first_s = costs.cost(VERIFY).device_s - device_s
    second_s = costs.cost(VERIFY).device_s - device_s
    assert first_s == pytest.approx(0.008 * share)
    assert second_s == pytest.approx(0.008 * (1.0 - share) * share)
    lost_s = first_s + second_s + sum(costs.cost(VERIFY).device_s - device_s for _ in range(200))
    assert lost_s == pytest.approx(0.008)


def test_a_short_pause_costs_less_than_a_long_one_and_the_shortest_nothing() -> None:
    device_s = build_costs(TINY).cost(VERIFY).device_s
    pauses_s, lost_s = (0.5 * SHORT_PAUSE_S, 0.02, 1.0), []
    for pause_s in pauses_s:
        costs = in_service(Moment(now_s=pause_s), idle_ramp=RAMP)
        lost_s.append(costs.cost(VERIFY).device_s - device_s)
    share = 1.0 - exp(-device_s / RAMP.work_s)
    beyond_s = [max(0.0, pause_s - SHORT_PAUSE_S) for pause_s in pauses_s]
    assert lost_s == pytest.approx([0.008 * share * (1.0 - exp(-more_s / 0.02)) for more_s in beyond_s])


def test_a_pause_is_one_of_a_stream_whatever_the_others_do() -> None:
    """The second stream has done nothing for a second, the first has just been busy."""
    moment = Moment()
    costs, device_s = in_service(moment, idle_ramp=RAMP), build_costs(TINY).cost(VERIFY).device_s
    costs.cost(VERIFY)
    moment.now_s = 1.0
    lost_s = []
    for stream in ("gpu", "gpu", "other"):
        moment.submitting = stream
        lost_s.append(costs.cost(VERIFY).device_s - device_s)
    assert lost_s[2] == pytest.approx(lost_s[0])
    assert 0.0 < lost_s[1] < lost_s[0]


async def issue(machine: SimHost, stream: Stream, number: int) -> None:
    for _ in range(number):
        await machine.run(VERIFY, stream)


def test_streams_that_never_idle_lose_nothing_however_slow_they_run_beside_each_other() -> None:
    ends_s = []
    for ramp in (None, RAMP):
        profile = changed(is_synchronous=True, result_s=0.0, idle_ramp=ramp, look_s=1e-9)
        profile = msgspec.structs.replace(
            profile, overlap=msgspec.structs.replace(profile.overlap, has_priorities=False, tau_s=1e-4)
        )
        machine = SimHost(build_costs(profile), PeriodicDraws(), contention=contention_of(profile.overlap))
        streams = [machine.stream(name) for name in "ab"]

        for stream in streams:
            machine.spawn(issue(machine, stream, 20))
        machine.run_until()
        ends_s.append(machine.now_s)
    assert ends_s[1] == pytest.approx(ends_s[0])


@pytest.mark.parametrize(("looks_per_s", "slowdown"), [(0.0, 1.0), (2000.0, 1.1), (1e9, 2.0)])
def test_workers_that_poll_slow_what_is_being_issued(looks_per_s: float, slowdown: float) -> None:
    """2,000 looks a second of 50 us each are a tenth of the time; more than every other turn they cannot have."""
    moment = Moment(looks_per_s=looks_per_s)
    bare, executed = (build_costs(changed(is_synchronous=yes)).cost(VERIFY) for yes in (False, True))
    launched = in_service(moment, look_s=5e-5).cost(VERIFY)
    assert (launched.launch_s, launched.device_s) == pytest.approx((slowdown * bare.launch_s, bare.device_s))
    synchronous = in_service(moment, look_s=5e-5, is_synchronous=True).cost(VERIFY)
    assert synchronous.launch_s == synchronous.device_s == pytest.approx(slowdown * executed.device_s)


def test_where_issuing_is_executing_nothing_of_the_next_work_is_hidden() -> None:
    """Two works at once: preparing 200 us + 2 rows x 3 us, then the pass; the second begins when the first is over."""
    profile = changed(is_synchronous=True, result_s=0.0)
    cost = build_costs(profile).cost(VERIFY)
    assert (cost.prepare_s, cost.launch_s) == (pytest.approx(0.000206), cost.device_s)
    machine = SimHost(build_costs(profile), PeriodicDraws())
    stream = machine.stream("a")
    tickets = [machine.run(VERIFY, stream) for _ in range(2)]
    machine.run_until()
    assert [ticket.start_s for ticket in tickets] == pytest.approx([0.000206, 2 * 0.000206 + cost.device_s])
    assert build_costs(profile).host_inflation(3) == 1.0


def test_chunks_that_are_not_captured_are_launched_kernel_by_kernel() -> None:
    host = {"graph_launch_s": 1e-5, "max_graph_tokens": 512}
    prefill = Work(kind=Kind.PREFILL, chunks=(Chunk(64, 0),), head_rows=1)
    pieces, eager = (build_costs(changed(**host, captures_chunks=yes)).cost(prefill) for yes in (True, False))
    assert eager.launch_s == pytest.approx(eager.num_kernels * TINY.host.eager_kernel_s)
    assert pieces.launch_s == pytest.approx(1e-5 + 2 * TINY.target.layers * TINY.host.eager_kernel_s)


def test_a_draft_with_prompts_is_a_pass_of_their_own_and_then_a_captured_draft_behind_its_launch() -> None:
    """As a replay runs it: the prompts kernel by kernel, and the rows' draft once all is launched."""
    draft = Work(
        kind=Kind.DRAFT, model=Model.DRAFT, rows=4, row_tokens=8, context_tokens=400, head_rows=4, draft_tokens=3
    )
    prompts = Work(kind=Kind.PREFILL, model=Model.DRAFT, chunks=(Chunk(64, 0),))
    host: dict[str, object] = {"engine": MEASURED_HERE, "captures_chunks": False, "graph_launch_s": 1e-6}
    host |= {"eager_kernel_s": 1e-3, "max_graph_tokens": 512}
    costs = build_costs(changed(**host))
    both, first, then = map(costs.cost, (msgspec.structs.replace(draft, chunks=prompts.chunks), prompts, draft))
    assert both[1:4] == pytest.approx([sum(parts) for parts in zip(first[1:4], then[1:4], strict=True)])
    machine = SimHost(costs, PeriodicDraws())
    ticket = machine.run(msgspec.structs.replace(draft, chunks=prompts.chunks), machine.stream("a"))
    machine.run_until()
    assert first.launch_s > first.device_s
    assert ticket.end_s == pytest.approx(both.prepare_s + first.launch_s + then.device_s)


def test_rows_of_a_captured_pass_are_padded_as_a_replay_pads_them() -> None:
    """Five rows, of which three draft for a token more, take what eight rows of two tokens do; what they read of KV is
    their own."""
    profile = load("h200-sxm/llama-3.1-8b+llama-3.2-1b-measured")
    rows = Work(
        kind=Kind.DRAFT, model=Model.DRAFT, rows=5, row_tokens=8, context_tokens=992, head_rows=5, draft_tokens=1
    )
    padded = msgspec.structs.replace(rows, rows=8, row_tokens=16, context_tokens=984, head_rows=8)
    costs, eager = build_costs(profile), build_costs(profile, cuda_graph=False)
    assert costs.cost(rows).device_s == costs.cost(padded).device_s > eager.cost(rows).device_s
    assert costs.cost(rows).prepare_s < costs.cost(padded).prepare_s
