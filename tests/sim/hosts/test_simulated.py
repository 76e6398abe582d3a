"""What the simulated host accounts for, and what it tells of a verify: totals by stream and kind, busy GPUs, draws."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

import lanesim
from sim.costs.cost import Demands, Link
from sim.devices.ticket import SimTicket
from sim.hosts.simulated import SimHost
from sim.interface.request import Request
from sim.interface.work import Chunk, Kind, Model, Work
from sim.policies.registry import POLICIES
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, AlwaysAccept, request

FREE = Demands(0.0, 0.0)


class NotedDraws:
    """Notes every question; accepts as many tokens as the request's index."""

    def __init__(self) -> None:
        self.questions: list[tuple[int, int, int]] = []

    def run_length(self, index: int, position: int, most: int) -> int:
        self.questions.append((index, position, most))
        return min(index, most)


def host(**options: object) -> SimHost:
    return SimHost(ConstantCosts(device_s=SECONDS, demand=FREE), AlwaysAccept(), **options)  # type: ignore[arg-type]


def drafted(index: int, emitted_tokens: int, draft_tokens: int) -> Request:
    asked = request(index, output=99)
    asked.emitted_tokens, asked.drafted = emitted_tokens, draft_tokens
    return asked


# -- totals


def test_works_are_totalled_by_stream_and_kind() -> None:
    """Two steps of 8 query tokens and chunks of 5 and 7; two drafts of 4 for 3 rows, the first with 2 tokens to catch
    up: 5 + 9 and 3 + 9 tokens. What the host does for itself takes no time of the device."""
    machine = host()
    stream = machine.stream("a")
    chunks = (Chunk(5, 20), Chunk(7, 0))
    for _ in range(2):
        machine.run(Work(kind=Kind.STEP, rows=2, row_tokens=8, chunks=chunks), stream)
    for row_tokens in (5, 3):
        draft = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=3, row_tokens=row_tokens, draft_tokens=4)
        machine.run(draft, stream)
    machine.run(Work(kind=Kind.HOST, host_s=3.0, rows=9), stream)
    machine.run_until(50.0)
    totals = {key: (usage.num_works, usage.device_s, usage.tokens) for key, usage in machine.usage.items()}
    assert totals == {
        ("a", Kind.STEP): (2, 10.0, 2 * (8 + 5 + 7)),
        ("a", Kind.DRAFT): (2, 4.0, 5 + 9 + 3 + 9),
        ("a", Kind.HOST): (1, 0.0, 0),
    }


def test_cancelled_works_take_the_time_to_their_checkpoint() -> None:
    """Drafts of 2 s, four tokens each: the first is cut at its second token, at 1 s, the second at its first, at 1.5 s.
    The third runs to its end."""
    machine = host()
    stream = machine.stream("a")
    drafts = [machine.run(Work(kind=Kind.DRAFT, draft_tokens=4), stream) for _ in range(3)]
    for time_s, cut in ((0.7, drafts[0]), (1.2, drafts[1])):
        machine.at(time_s, lambda _, cut=cut: cut.cancel())
    machine.run_until(50.0)
    usage = machine.usage[("a", Kind.DRAFT)]
    assert (usage.num_works, usage.device_s) == (3, 3.5)


def test_what_has_ended_by_the_stop_is_reported_and_nothing_else() -> None:
    reported: list[SimTicket] = []
    machine = host(on_work=reported.append)
    stream = machine.stream("a")
    tickets = [machine.run(Work(kind=kind), stream) for kind in (Kind.DRAFT, Kind.VERIFY, Kind.PREFILL)]
    machine.run_until(7.0)
    machine.run_until(8.0)
    assert reported == tickets[:2]
    assert machine.usage[("a", Kind.VERIFY)].num_works == 1
    assert ("a", Kind.PREFILL) not in machine.usage


def test_busy_time_is_the_mean_of_the_gpus_and_links_are_none() -> None:
    """5 s of one GPU and 2 s of the other; the link is busy for 9 s."""
    machine = host(links={"link": Link(latency_s=9.0, bytes_per_s=1.0)})
    streams = [machine.stream("a", device=0), machine.stream("b", device=1), machine.stream("l", device="link")]
    for kind, stream in zip((Kind.VERIFY, Kind.DRAFT, Kind.COPY), streams, strict=True):
        machine.run(Work(kind=kind), stream)
    machine.run_until()
    assert machine.now_s == 9.0
    assert machine.device_busy_s == 3.5


# -- streams


def test_streams_have_names_of_their_own() -> None:
    machine = host()
    machine.stream("a")
    with pytest.raises(ValueError, match="'a' exists already"):
        machine.stream("a")


def test_a_stream_on_a_link_names_one_that_there_is() -> None:
    machine = host(links={"nvlink": Link(latency_s=0.0, bytes_per_s=1.0)})
    with pytest.raises(ValueError, match=r"no link named 'nvlnk'. Links: \['nvlink'\]"):
        machine.stream("a", device="nvlnk")


# -- draws


def test_a_verify_asks_for_every_row_that_drafted_from_where_its_output_stands() -> None:
    draws = NotedDraws()
    machine = SimHost(ConstantCosts(device_s=SECONDS), draws)
    rows = (drafted(3, 7, 4), drafted(5, 9, 0), drafted(6, 2, 4))
    with_kv = Work(kind=Kind.VERIFY, requests=rows, rows=3, row_tokens=11)
    without_kv = Work(kind=Kind.VERIFY, requests=rows, chunks=tuple(Chunk(9, 0) for _ in rows))
    stream = machine.stream("a")
    tickets = [machine.run(work, stream) for work in (with_kv, without_kv)]
    assert [list(ticket.result.accepted) for ticket in tickets] == [[3, 0, 4]] * 2
    assert draws.questions == [(3, 7, 4), (6, 2, 4)] * 2


def test_a_verify_may_check_other_tokens_than_those_in_flight_of_drafts_by_several_models() -> None:
    first, second = NotedDraws(), NotedDraws()
    machine = SimHost(ConstantCosts(device_s=SECONDS), first, draws_by_drafter=(first, second))
    rows = (drafted(3, 7, 4), drafted(5, 9, 0), drafted(6, 2, 4))
    work = Work(kind=Kind.VERIFY, requests=rows, rows=3, row_tokens=11, drafted=(1, 2, 0), drafters=(1, 0, 1))
    machine.run(work, machine.stream("a"))
    assert (first.questions, second.questions) == ([(5, 9, 2)], [(3, 7, 1)])


def test_a_step_asks_for_its_rows_and_not_for_its_prompts() -> None:
    draws = NotedDraws()
    machine = SimHost(ConstantCosts(device_s=SECONDS), draws)
    rows = (drafted(3, 7, 4), drafted(1, 2, 4), drafted(6, 0, 4))
    work = Work(kind=Kind.STEP, requests=rows, rows=2, row_tokens=10, chunks=(Chunk(9, 0),))
    ticket = machine.run(work, machine.stream("a"))
    assert list(ticket.result.accepted) == [3, 1]
    assert draws.questions == [(3, 7, 4), (1, 2, 4)]


@pytest.mark.parametrize("kind", [Kind.PREFILL, Kind.DRAFT, Kind.STEP])
def test_nothing_is_asked_where_nothing_is_verified(kind: Kind) -> None:
    draws = NotedDraws()
    machine = SimHost(ConstantCosts(device_s=SECONDS), draws)
    ticket = machine.run(Work(kind=kind, requests=(drafted(3, 7, 4),), chunks=(Chunk(9, 0),)), machine.stream("a"))
    assert (list(ticket.result.accepted), draws.questions) == ([], [])


# -- the clock


def test_the_clock_does_not_pass_the_end_of_a_run_nor_what_comes_before_a_work_is_done() -> None:
    """A step takes 5 s, and nothing else has an event; the run is cut at 3 s, and at 7 s somebody looks on."""
    machine, seen = host(), []
    stream = machine.stream("a")

    async def serve() -> None:
        for _ in range(2):
            await machine.run(Work(kind=Kind.STEP, rows=1, row_tokens=1), stream)
            seen.append(machine.now_s)

    machine.spawn(serve())
    machine.at(7.0, lambda _: seen.append(-machine.now_s))
    machine.run_until(3.0)
    assert (machine.now_s, seen) == (3.0, [])
    machine.run_until()
    assert seen == [5.0, -7.0, 10.0]


# -- beside an event loop


@pytest.mark.parametrize("policy", POLICIES)
def test_a_simulation_within_a_running_event_loop_leaves_nothing_to_it(policy: str) -> None:
    """As in a notebook: lanes that wait for a next prompt when all is over are dropped without a task of the loop. The
    hooks of the loop are its own again then."""
    complaints: list[dict[str, object]] = []

    async def cell() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        hooks = sys.get_asyncgen_hooks()
        lanesim.simulate(profile="cpu/tiny", policy=policy, num_prompts=4, request_rate=10)
        assert sys.get_asyncgen_hooks() == hooks
        gc.collect()
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(cell())
    assert complaints == []
