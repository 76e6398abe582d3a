"""The account of every request, one rule at a time: arrivals, admission, memory, emissions. Blocks hold 16 tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sim.engine.kv import KvPool
from sim.engine.paged import PagedPool
from sim.engine.serving import EVERYONE, AdmissionCaps, Serving
from sim.hosts.scripted import ScriptHost
from sim.interface.request import Request
from tests.sim.support import NotedController, request


class Served:
    """A Serving on a host without works; `at` calls something at its time."""

    def __init__(
        self,
        requests: list[Request],
        pool: KvPool | None = None,
        *,
        max_concurrency: int | None = None,
        max_num_seqs: int | None = None,
        measured: range = EVERYONE,
    ) -> None:
        self.host = ScriptHost(lambda work: 0.0)
        self.drafts = NotedController(4, 4)
        pool = pool or KvPool(100, 16, 5)
        self.serving = Serving(
            self.host,
            requests,
            pool,
            self.drafts,
            AdmissionCaps(max_concurrency, max_num_seqs),
            measured=measured,
        )

    def at(self, time_s: float, act: Callable[[], object]) -> None:
        self.host.at(time_s, lambda _: act())

    def run(self, stop_s: float | None = None) -> Serving:
        self.host.spawn(self.serving.arrivals())
        self.host.run_until(stop_s)
        return self.serving


def finish(serving: Serving, request: Request) -> None:
    serving.emit(request, request.output_tokens)


def paged(num_blocks: int = 10) -> PagedPool:
    return PagedPool(num_blocks, 16, 9)


def arrived(requests: list[Request], pool: KvPool) -> Serving:
    """All of `requests` in the inbox, at 0 s."""
    return Served(requests, pool).run()


# -- arrivals


def test_a_run_is_not_over_while_requests_are_still_to_arrive() -> None:
    asked = [request(0), request(1, arrival_s=9.0)]
    served = Served(asked)
    served.at(1.0, served.serving.admit_now)
    served.at(2.0, lambda: finish(served.serving, asked[0]))
    serving = served.run(5.0)
    assert not serving.is_all_finished
    assert (serving.num_arrived, serving.num_finished) == (1, 1)


def test_a_frontend_passes_every_request_on_its_own_time_after_it_came() -> None:
    """1 s each and 0.5 s for each of 4 tokens, many at once: two at 0 s are in the queue at 3 s, one of 1 s at 4 s. It
    counts from arrival."""
    asked = [request(0, prompt=4), request(1, prompt=4), request(2, arrival_s=1.0, prompt=4)]
    served = Served(asked)
    served.serving.intake.frontend_s, served.serving.intake.frontend_token_s = 1.0, 0.5
    served.host.spawn(served.serving.intake.frontend())
    lengths: dict[float, int] = {}
    for time_s in (2.5, 3.5, 4.5):
        served.at(time_s, lambda now=time_s: lengths.update({now: len(served.serving.inbox)}))
    serving = served.run()
    assert lengths == {2.5: 0, 3.5: 2, 4.5: 3}
    assert serving.num_arrived == 3
    assert [r.arrival_s for r in asked] == [0.0, 0.0, 1.0]


def test_requests_of_one_instant_arrive_together() -> None:
    served = Served([request(0), request(1), request(2, arrival_s=4.0), request(3, arrival_s=4.0)])
    seen = []

    async def worker() -> None:
        while True:
            await served.host.wait(served.serving.intake.changed)
            seen.append((served.host.now_s, len(served.serving.inbox)))

    served.host.spawn(worker())
    served.run()
    assert seen == [(0.0, 2), (4.0, 4)]


# -- admission


def longest(waiting: Sequence[Request]) -> Request:
    return max(waiting, key=lambda each: each.prompt_tokens)


def test_a_policy_admits_whom_it_chooses_and_the_others_keep_their_order() -> None:
    asked = [request(0, prompt=10), request(1, prompt=30), request(2, prompt=20)]
    serving = arrived(asked, KvPool(100, 16, 5))
    assert serving.admit_now(longest) is asked[1]
    assert (list(serving.inbox), serving.queue.value) == ([asked[0], asked[2]], 2)
    assert (asked[1].scheduled_s, serving.num_active) == (0.0, 1)


def test_none_overtakes_the_chosen_one_while_there_is_no_room_for_it() -> None:
    """Two blocks: room for 10 + 6 tokens and drafts, not for 30."""
    asked = [request(0, prompt=10), request(1, prompt=30)]
    serving = arrived(asked, KvPool(2, 16, 5))
    assert serving.admit_now(longest) is None
    assert (list(serving.inbox), serving.num_active) == (asked, 0)
    assert serving.admit_now() is asked[0]


def test_who_waits_for_admission_chooses_anew_when_another_one_has_come() -> None:
    """One seat, free again at 5 s; the longer request came at 2 s."""
    asked = [request(0), request(1, prompt=10), request(2, arrival_s=2.0, prompt=30)]
    served = Served(asked, max_num_seqs=1)
    served.at(5.0, lambda: finish(served.serving, asked[0]))
    admitted: list[tuple[float, int]] = []

    async def admit() -> None:
        for choose in (None, longest):
            index = (await served.serving.admit(choose)).index
            admitted.append((served.host.now_s, index))

    served.host.spawn(admit())
    served.run()
    assert admitted == [(0.0, 0), (5.0, 2)]


# -- preemption


# -- what works brought


@pytest.mark.parametrize(
    ("drafted", "accepted", "counts", "needs_catch_up"),
    [(4, 4, (1, 4, 4), True), (4, 2, (1, 4, 2), False), (4, 0, (1, 4, 0), False), (0, 0, (0, 0, 0), False)],
)
def test_a_round_is_counted_where_something_was_drafted(
    drafted: int, accepted: int, counts: tuple[int, int, int], needs_catch_up: bool
) -> None:
    served = Served([request(0, output=50)], paged())
    serving, asked = served.run(), served.serving.requests[0]
    serving.seat_now(100)
    serving.commit_chunk(asked, 10)
    serving.open_round(asked, drafted)
    serving.commit_rounds([asked], [accepted])
    assert (asked.num_rounds, asked.drafted_tokens, asked.accepted_tokens) == counts
    assert asked.needs_catch_up is needs_catch_up
    assert served.drafts.rounds == ([(drafted, accepted)] if drafted else [])


def test_a_finished_request_gives_all_back_and_is_told_of() -> None:
    served = Served([request(0), request(1)], KvPool(2, 16, 5))
    serving = served.run()
    asked = serving.requests[0]
    serving.admit_now()
    serving.commit_prefill(asked)
    before = serving.finished.version, serving.intake.changed.version
    finish(serving, asked)
    assert (serving.kv.held.value, serving.kv.free_blocks) == (0, 2)
    assert (serving.finished.version, serving.intake.changed.version) == (before[0] + 1, before[1] + 1)


def test_nobody_is_woken_for_memory_that_nobody_waits_for() -> None:
    serving = arrived([request(0)], KvPool(3, 16, 5))
    serving.admit_now()
    version = serving.intake.changed.version
    finish(serving, serving.requests[0])
    assert serving.intake.changed.version == version


def test_a_request_is_scheduled_when_it_is_admitted_for_the_first_time() -> None:
    served = Served([request(0)], paged())
    asked = served.serving.requests[0]
    served.at(1.0, lambda: served.serving.seat_now(100))
    served.at(2.0, lambda: served.serving.preempt(asked))
    served.at(3.0, lambda: served.serving.seat_now(100))
    served.run()
    assert asked.scheduled_s == 1.0


def seated(prompt: int, *, computed: int, emitted: int = 1, num_blocks: int = 10) -> tuple[Serving, Request]:
    """A request of `prompt` tokens, `computed` of them prefilled, and `emitted` tokens if that is all of them."""
    asked = request(0, prompt=prompt, output=50)
    serving = arrived([asked], paged(num_blocks))
    serving.seat_now(computed)
    serving.commit_chunk(asked, computed)
    for _ in range(emitted - 1):
        serving.paged.grow(asked, asked.context_tokens + 1)
        serving.open_round(asked, 0)
        serving.commit_rounds([asked], [0])
    return serving, asked


def test_a_preempted_request_holds_nothing_and_waits_first() -> None:
    asked = [request(0, prompt=20), request(1)]
    serving = arrived(asked, paged())
    serving.seat_now(100)
    serving.commit_chunk(asked[0], 20)
    serving.open_round(asked[0], 4)
    serving.preempt(asked[0])
    assert (serving.kv.held.value, serving.paged.num_held, serving.num_active) == (0, 0, 0)
    assert (list(serving.inbox), serving.queue.value) == (asked, 2)
    assert (asked[0].is_preempted, asked[0].num_preemptions, asked[0].drafted) == (True, 1, 0)


def test_a_chunk_under_way_is_not_held_by_a_request_that_was_preempted() -> None:
    serving, asked = seated(40, computed=16)
    asked.in_flight = 16
    serving.preempt(asked)
    asked.in_flight = 0
    serving.commit_chunk(asked, 16)
    assert (asked.prefilled_tokens, serving.kv.held.value) == (32, 0)


def test_a_request_whose_last_token_was_under_way_waits_no_longer() -> None:
    asked = [request(0, prompt=20, output=2), request(1)]
    serving = arrived(asked, paged())
    serving.seat_now(100)
    serving.commit_chunk(asked[0], 20)
    serving.open_round(asked[0], 0)
    asked[0].in_flight = 1
    serving.preempt(asked[0])
    serving.commit_rounds([asked[0]], [0])
    assert (asked[0].is_finished, list(serving.inbox), serving.queue.value) == (True, [asked[1]], 1)
    assert (serving.num_active, serving.num_finished, serving.paged.num_free) == (0, 1, 10)


def test_a_closed_loop_lets_the_next_request_arrive_when_a_place_is_free() -> None:
    """Two at a time: 0 is done at 5 s and 1 at 6 s; 3 comes later than its place. Who waits for admission has one."""
    asked = [request(0), request(1), request(2, arrival_s=1.0), request(3, arrival_s=9.0)]
    served = Served(asked, max_concurrency=2)
    for time_s, done in ((5.0, asked[0]), (6.0, asked[1])):
        served.at(time_s, served.serving.admit_now)
        served.at(time_s, lambda done=done: finish(served.serving, done))
    serving = served.run()
    assert [r.arrival_s for r in asked] == [0.0, 0.0, 5.0, 9.0]
    assert list(serving.inbox) == asked[2:]


def test_the_queue_is_counted_as_long_as_it_lasts() -> None:
    """One waits from 0 s, two from 2 s, one from 4 s: 2 + 4 + 6 in 10 s."""
    served = Served([request(0), request(1, arrival_s=2.0)])
    served.at(4.0, served.serving.admit_now)
    queue = served.run(10.0).queue
    assert (queue.mean(10.0), queue.peak) == (1.2, 2)


def test_the_engine_queues_at_its_step_what_arrived_since_the_last() -> None:
    """Request 0 is seated at 1 s and comes back at 2 s, ahead of request 1, which arrived meanwhile."""
    asked = [request(0), request(1, arrival_s=1.5)]
    served = Served(asked, paged())
    serving = served.serving
    for act in (serving.intake.take_in, lambda: serving.seat_now(100)):
        served.at(1.0, act)
    served.at(2.0, lambda: serving.preempt(asked[0]))
    for time_s in (2.5, 4.0):
        served.at(time_s, serving.intake.take_in)
    served.run()
    assert list(serving.inbox) == asked
    assert [r.queued_s for r in asked] == [1.0, 2.5]


def test_a_round_holds_its_draft_and_one_more_and_keeps_what_was_accepted() -> None:
    serving, asked = seated(20, computed=20)
    serving.open_round(asked, 4)
    assert serving.kv.held.value == 25
    serving.trim_draft(asked, 3)
    assert (serving.kv.held.value, asked.drafted) == (24, 3)
    serving.commit_rounds([asked], [2])
    assert (serving.kv.held.value, asked.drafted, asked.emitted_tokens) == (23, 0, 4)


def test_of_a_batch_only_what_is_unfinished_goes_on() -> None:
    asked = [request(0, output=3), request(1, output=9)]
    serving = arrived(asked, KvPool(100, 16, 5))
    for each in asked:
        serving.admit_now()
        serving.commit_prefill(each)
        serving.open_round(each, 4)
    assert serving.commit_rounds(asked, [1, 2]) == [asked[1]]
    assert [r.emitted_tokens for r in asked] == [3, 4]


def test_output_is_cut_at_what_was_asked_and_acceptance_is_not() -> None:
    asked = request(0, output=3)
    serving = arrived([asked], KvPool(100, 16, 5))
    serving.admit_now()
    serving.commit_prefill(asked)
    serving.open_round(asked, 4)
    serving.commit_rounds([asked], [4])
    assert (asked.emitted_tokens, asked.accepted_tokens) == (3, 4)


def test_gaps_lie_between_emissions_of_requests_that_are_measured() -> None:
    """Requests 0 and 2 are not. Request 1 emits at 1, 3 and 4 s: its first token has no gap, the others 2 and 1 s."""
    asked = [request(0, output=9), request(1, output=9), request(2, output=9)]
    served = Served(asked, measured=range(1, 2))
    for time_s in (1.0, 3.0, 4.0):
        for each in asked:
            served.at(time_s, lambda each=each: served.serving.emit(each, 2))
    serving = served.run()
    assert (list(serving.gaps.gaps_s), list(serving.gaps.counts)) == ([2.0, 1.0], [1, 1])
    assert [(r.first_token_s, r.last_token_s, r.emitted_tokens) for r in asked] == [(1.0, 4.0, 6)] * 3


def test_who_waits_for_memory_gets_it_when_a_request_is_done() -> None:
    """Three blocks for 10 + 6 + 5 tokens each: the second has room at 7 s."""
    asked = [request(0), request(1)]
    served = Served(asked, KvPool(3, 16, 5))

    async def worker() -> None:
        while True:
            await served.serving.admit()

    served.host.spawn(worker())
    served.at(7.0, lambda: finish(served.serving, asked[0]))
    served.run()
    assert [r.scheduled_s for r in asked] == [0.0, 7.0]
