"""Costs in service, summed by hand: pauses, cold caches, workers that poll, and issuing that is executing."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from sim.costs.engine_costs import MEASURED_HERE
from sim.costs.forms.build import build_costs
from sim.costs.in_service import ServiceCosts, in_service, kind_in_service
from sim.costs.profile import SERVED_KINDS, Profile
from sim.costs.profile_files import load
from sim.hosts.simulated import SimHost
from sim.interface.work import Chunk, Kind, Model, Work
from tests.sim.support import PeriodicDraws

TINY = load("cpu/tiny")
VERIFY = Work(kind=Kind.VERIFY, rows=2, row_tokens=10, context_tokens=100, head_rows=10)
DRAFT = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=2, row_tokens=2, context_tokens=100, head_rows=2, draft_tokens=4)


def changed(**host: object) -> Profile:
    return msgspec.structs.replace(TINY, host=msgspec.structs.replace(TINY.host, **host))


@dataclass
class Moment:
    """What a host tells."""

    looks_per_s: float = 0.0


def served_costs(moment: Moment | None = None, **host: object) -> ServiceCosts:
    profile = changed(**host)
    return ServiceCosts(build_costs(profile), profile.host, moment or Moment())


def test_a_profile_that_knows_nothing_of_service_prices_as_it_is() -> None:
    costs = build_costs(TINY)
    assert in_service(costs, Moment()) is costs
    for known in ({"served": {"verify": 1.2}}, {"look_s": 1e-5}):
        assert isinstance(in_service(build_costs(changed(**known)), Moment()), ServiceCosts)


def test_a_pass_takes_longer_in_service_by_its_kind() -> None:
    costs, bare = served_costs(served={"verify": 1.25, "draft": 0.9}), build_costs(TINY)
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


@pytest.mark.parametrize(("looks_per_s", "slowdown"), [(0.0, 1.0), (2000.0, 1.1), (1e9, 2.0)])
def test_workers_that_poll_slow_what_is_being_issued(looks_per_s: float, slowdown: float) -> None:
    """2,000 looks a second of 50 us each are a tenth of the time; more than every other turn they cannot have."""
    moment = Moment(looks_per_s=looks_per_s)
    bare, executed = (build_costs(changed(is_synchronous=yes)).cost(VERIFY) for yes in (False, True))
    launched = served_costs(moment, look_s=5e-5).cost(VERIFY)
    assert (launched.launch_s, launched.device_s) == pytest.approx((slowdown * bare.launch_s, bare.device_s))
    synchronous = served_costs(moment, look_s=5e-5, is_synchronous=True).cost(VERIFY)
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


def test_our_own_pass_of_prompts_and_rows_launches_720_kernels_where_prompts_alone_launch_601() -> None:
    host = {"engine": MEASURED_HERE, "captures_chunks": False, "eager_kernel_s": 1e-5}
    prompts = Work(kind=Kind.STEP, chunks=(Chunk(64, 0),), head_rows=1)
    both = msgspec.structs.replace(VERIFY, kind=Kind.STEP, chunks=prompts.chunks)
    ours, engines = build_costs(changed(**host)), build_costs(changed(**host | {"engine": None}))
    assert 601 * ours.cost(both).launch_s == pytest.approx(720 * ours.cost(prompts).launch_s)
    assert engines.cost(both).launch_s == engines.cost(prompts).launch_s == ours.cost(prompts).launch_s


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
