"""The sequential unified worker (report 002's code), event by event: prefill 10 s, draft 2 s, verify 5 s."""

from __future__ import annotations

from typing import Any

import pytest

from sim.hosts.scripted import ScriptHost
from sim.interface.work import Kind, Model
from sim.policies.options import Batching
from sim.policies.registry import PolicyOptions
from tests.sim.support import SECONDS, AlwaysAccept, NeverAccept, SimRun, played, request


def sequential(**options: object) -> PolicyOptions:
    return PolicyOptions(pipelined=False, poll_s=0.0, **options)  # type: ignore[arg-type]


def test_a_prompt_is_taken_in_and_then_every_call_is_awaited() -> None:
    requests = [request(0, output=6), request(1, arrival_s=1.0, output=4)]
    run = SimRun("unified", requests, draws=AlwaysAccept(), options=sequential())
    assert run.works == [
        (0.0, 10.0, "prefill", "prefill", (0,)),
        (10.0, 20.0, "prefill", "prefill", (0,)),
        (20.0, 22.0, "draft", "draft", (0,)),
        (22.0, 27.0, "verify", "verify", (0,)),
        (27.0, 37.0, "prefill", "prefill", (1,)),
        (37.0, 47.0, "prefill", "prefill", (1,)),
        (47.0, 49.0, "draft", "draft", (1,)),
        (49.0, 54.0, "verify", "verify", (1,)),
    ]


def test_a_loop_is_one_prefill_and_then_one_round_of_each_in_turn() -> None:
    """A loop of n requests lasts 20 + 7n s one by one: the third prompt begins at 27 + 34 s."""
    requests = [request(i, output=9) for i in range(3)]
    run = SimRun("unified", requests, draws=NeverAccept(), options=sequential(batching=Batching.PER_REQUEST))
    assert [work[0] for work in run.works if work[3] == "prefill"][::2] == [0.0, 27.0, 61.0]
    verified = [work[4] for work in run.works if work[3] == "verify"]
    assert verified[:6] == [(0,), (0,), (1,), (0,), (1,), (2,)]


def test_batched_it_verifies_its_whole_queue_at_once() -> None:
    requests = [request(i, output=9) for i in range(3)]
    run = SimRun("unified", requests, draws=NeverAccept(), options=sequential())
    assert [work[4] for work in run.works if work[3] == "verify"][:3] == [(0,), (0, 1), (0, 1, 2)]


def test_no_prompt_is_taken_in_at_the_limit_itself() -> None:
    """1.2 batches of 1: one decoding lets another in, two do not until one is through."""
    requests = [request(i, output=9) for i in range(3)]
    run = SimRun("unified", requests, draws=NeverAccept(), options=sequential(decode_batch=1))
    last_of_first = requests[0].last_token_s
    assert requests[1].scheduled_s < last_of_first <= requests[2].scheduled_s
    assert run.serving.is_all_finished


@pytest.mark.parametrize("pipelined", [True, False])
def test_an_idle_worker_looks_for_a_prompt_every_spin(pipelined: bool) -> None:
    """Looks at 0.4, 0.8, 1.2 s: a prompt of 1 s is taken in at the third."""
    asked = [request(0, arrival_s=1.0, output=1)]
    SimRun("unified", asked, options=PolicyOptions(pipelined=pipelined, poll_s=0.4))
    assert asked[0].scheduled_s == pytest.approx(1.2)


class LateHost(ScriptHost):
    """It hears 25 s late that the draft model has the first prompt: the second is through the target by then."""

    def complete(self, wait: Any, value: Any = None) -> None:
        work = getattr(wait, "work", None)
        is_first = work is not None and work.model is Model.DRAFT and work.requests[0].index == 0
        if is_first and work.kind is Kind.PREFILL and self.now_s < wait.end_s + 25.0:
            self.at(self.now_s + 25.0, lambda _: self.complete(wait, value))
        else:
            super().complete(wait, value)


def test_a_prompt_that_is_through_the_target_waits_for_the_draft_model_and_time_goes_on() -> None:
    """The first is in both models at 20 s, the second in the target at 30 s. Both are followed up at 45 s."""
    requests = [request(index, output=1) for index in range(2)]
    assert played(
        LateHost(lambda work: SECONDS[work.kind]), "unified", requests, PolicyOptions(poll_s=0.0)
    ).is_all_finished
    assert [each.first_token_s for each in requests] == [45.0, 45.0]
