"""Disaggregated, event by event: prefill 10 s, copy 1 s, draft 2 s, verify 5 s, every draft accepted."""

from __future__ import annotations

import pytest

from sim.interface.work import Kind, Model
from sim.policies.disaggregated import DevicePools
from sim.policies.options import Batching, EngineLimits, KvMode
from sim.policies.registry import PolicyOptions
from tests.sim.hosts.test_contract import outcome, requests
from tests.sim.support import AlwaysAccept, SimRun, request


def run(num_requests: int = 2, *, output: int = 6, **options: object) -> SimRun:
    return SimRun(
        "disaggregated",
        [request(index, output=output) for index in range(num_requests)],
        draws=AlwaysAccept(),
        options=PolicyOptions(poll_s=0.0, **options),  # type: ignore[arg-type]
    )


def test_a_prompt_is_computed_here_sent_and_decoded_there_while_the_next_one_is_computed() -> None:
    """The copy waits for the draft model's prefill, whose KV goes along."""
    found = run()
    assert sorted(found.works) == sorted(
        [
            (0.0, 10.0, "prefill0", "prefill", (0,)),
            (10.0, 20.0, "prefill0", "prefill", (0,)),
            (20.0, 21.0, "link", "copy", (0,)),
            (21.0, 23.0, "decode0", "draft", (0,)),
            (23.0, 28.0, "decode0", "verify", (0,)),
            (20.0, 30.0, "prefill0", "prefill", (1,)),
            (30.0, 40.0, "prefill0", "prefill", (1,)),
            (40.0, 41.0, "link", "copy", (1,)),
            (41.0, 43.0, "decode0", "draft", (1,)),
            (43.0, 48.0, "decode0", "verify", (1,)),
        ]
    )
    assert [r.first_token_s for r in found.serving.requests] == [20.0, 40.0]
    gpus = {ticket.stream.name: ticket.stream.device for ticket in found.tickets}
    assert gpus == {"prefill0": 0, "decode0": 1, "link": "link"}


def test_several_gpus_of_a_kind_work_side_by_side_and_a_request_stays_where_its_room_is() -> None:
    """Two prompts at once; the one link takes their KV one after the other."""
    found = run(pools=DevicePools(prefill=2, decode=2))
    assert [work[:2] for work in found.works if work[3] == "copy"] == [(20.0, 21.0), (21.0, 22.0)]
    verified = {work[2]: work[4] for work in found.works if work[3] == "verify"}
    assert verified == {"decode0": (0,), "decode1": (1,)}
    assert [r.last_token_s for r in found.serving.requests] == [28.0, 29.0]


def test_a_draft_model_on_its_own_gpu_prefills_there_and_only_the_targets_kv_is_sent() -> None:
    found = run(1, pools=DevicePools(draft=1))
    assert sorted(found.works) == sorted(
        [
            (0.0, 10.0, "prefill0", "prefill", (0,)),
            (0.0, 10.0, "draft0", "prefill", (0,)),
            (10.0, 11.0, "link", "copy", (0,)),
            (11.0, 13.0, "draft0", "draft", (0,)),
            (13.0, 18.0, "decode0", "verify", (0,)),
        ]
    )


def test_drafts_of_one_batch_run_side_by_side_where_their_kv_is() -> None:
    found = run(2, output=11, pools=DevicePools(prefill=2, draft=2))
    assert {work[2] for work in found.works if work[3] == "draft"} == {"draft0", "draft1"}
    verified = [work[4] for work in found.works if work[3] == "verify"]
    assert (0, 1) in verified or (1, 0) in verified


@pytest.mark.parametrize("gpus", [(1, 1, 0), (2, 3, 0), (2, 2, 2)])
@pytest.mark.parametrize("batching", list(Batching))
@pytest.mark.parametrize("kv", [KvMode.ROLLBACK, KvMode.REFORWARD])
def test_on_one_tape_every_token_is_that_of_the_colocated_run(
    gpus: tuple[int, int, int], batching: Batching, kv: KvMode
) -> None:
    """Tokens, rounds and accepted drafts of every request, as under pd; only the times are others."""
    prefill, decode, draft = gpus
    apart = PolicyOptions(batching=batching, kv=kv, pools=DevicePools(prefill=prefill, decode=decode, draft=draft))
    ours = SimRun("disaggregated", requests(), options=apart)
    theirs = SimRun("pd", requests(), options=PolicyOptions(batching=batching, kv=kv))
    tokens = [[(row[0], *row[3:]) for row in outcome(each.serving.requests)] for each in (ours, theirs)]
    assert tokens[0] == tokens[1]
    rounds = [sorted((r.index, accepted) for r, accepted in rounds_of(each)) for each in (ours, theirs)]
    assert rounds[0] == rounds[1]


def rounds_of(run: SimRun) -> list:
    """(request, accepted) of every verified row, in the order in which they were verified."""
    return [
        (row, accepted)
        for ticket in run.tickets
        if ticket.work.kind is Kind.VERIFY
        for row, accepted in zip(ticket.work.requests, ticket.result.accepted, strict=True)
    ]


def test_every_gpu_seats_as_many_as_the_engine_allows() -> None:
    found = SimRun(
        "disaggregated",
        [request(i, output=40) for i in range(6)],
        options=PolicyOptions(poll_s=0.0, pools=DevicePools(prefill=6, decode=2)),
        limits=EngineLimits(max_num_seqs=2),
    )
    first = sorted(r.scheduled_s for r in found.serving.requests)
    assert first[:4] == [0.0] * 4
    assert first[4] > 0.0


def test_requests_that_end_with_a_round_leave_their_draft_gpu() -> None:
    asked = [request(index, arrival_s=100.0 * index) for index in range(3)]
    found = SimRun("disaggregated", asked, options=PolicyOptions(poll_s=0.0, pools=DevicePools(draft=2)))
    assert {ticket.stream.name for ticket in found.tickets if ticket.work.model is Model.DRAFT} == {"draft0"}
