"""PDV rule by rule, as whole logs that can be summed by hand: draft 2 s, verify 5 s, every draft accepted.

A prompt takes 0.5 s in the target and 0.5 s in the draft model, so that lanes fill up. Works never slow each other,
but where a test says so. Not here: lanes that poll, batches and contention, whose times are those of the
scheduler in SimPy's idiom (tests/sim/test_reference.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.costs.cost import Demands
from sim.devices.contention import Contention, Regime
from sim.interface.work import Kind
from sim.policies.options import BatchBy, Batching, EngineLimits, KvMode
from sim.policies.registry import PolicyOptions
from tests.sim.constant_costs import ConstantCosts
from tests.sim.support import SECONDS, AlwaysAccept, NotedController, SimRun, WorkLog, request

ROUND = 6
"""Output of one prefill and one round."""


def run_pdv(
    num_requests: int,
    *,
    output: int = ROUND,
    pass_s: float = 0.5,
    contention: Contention | None = None,
    drafts: NotedController | None = None,
    limits: EngineLimits | None = None,
    **options: object,
) -> SimRun:
    """Requests that all arrive at 0 s, whose prompts take `pass_s` in each model; drafts of 4."""
    demand = Demands(0.0, 0.0) if contention is None else Demands(1.0, 1.0)
    return SimRun(
        "pdv",
        [request(index, output=output) for index in range(num_requests)],
        draws=AlwaysAccept(),
        costs=ConstantCosts(device_s={**SECONDS, Kind.PREFILL: pass_s}, demand=demand),
        options=PolicyOptions(**{"poll_s": 0.0, "decode_batch": 1, "verify_batch": 1, **options}),  # type: ignore[arg-type]
        limits=limits,
        contention=contention,
        controller=drafts or NotedController(4, 4),
    )


def prompts(num_requests: int, start_s: float = 0.0, pass_s: float = 0.5) -> WorkLog:
    """One prompt after the other, each through target and draft model."""
    return [
        (start_s + pass_s * number, start_s + pass_s * (number + 1), "prefill", "prefill", (number // 2,))
        for number in range(2 * num_requests)
    ]


def draft(start_s: float, *indices: int) -> tuple[float, float, str, str, tuple[int, ...]]:
    return start_s, start_s + 2.0, "decode", "draft", indices


def verify(start_s: float, *indices: int) -> tuple[float, float, str, str, tuple[int, ...]]:
    return start_s, start_s + 5.0, "verify", "verify", indices


def test_streams_are_plain_unless_priorities_are_asked_for() -> None:
    streams = [ticket.stream for ticket in run_pdv(1).tickets]
    assert {stream.name for stream in streams} == {"decode", "prefill", "verify"}
    assert {stream.priority for stream in streams} == {0}


def test_where_priorities_are_asked_for_decode_comes_before_verify_and_verify_before_prefill() -> None:
    tickets = run_pdv(1, stream_priorities=True).tickets
    priority = {ticket.stream.name: ticket.stream.priority for ticket in tickets}
    assert priority["decode"] > priority["verify"] > priority["prefill"]


AGAIN = [(8.0, 8.5, "verify", "prefill", (0,)), (13.5, 14.0, "verify", "prefill", (1,))]
LANES: dict[str, tuple[int, dict[str, Any], tuple[float, float], WorkLog]] = {
    # Ten tokens are two drafts of 4 and the newest token of each, though the present drafts are of 2.
    "no lane takes more than its longest drafts leave room for": (
        7, {"output": 4, "pass_s": 0.25, "limits": EngineLimits(max_num_batched_tokens=10),
            "draft_tokens": 2, "decode_batch": None, "verify_batch": None}, (0, 0.25),
        [draft(0.5, 0), draft(2.5, 1, 2), draft(4.5, 3, 4), draft(6.5, 5, 6),
         verify(2.5, 0), verify(7.5, 1, 2), verify(12.5, 3, 4), verify(17.5, 5, 6)],
    ),
    "an engine that loops over requests carries one in every work": (
        4, {"decode_batch": 2, "verify_batch": 3, "batching": Batching.PER_REQUEST}, (0, 0.5),
        [*(draft(1.0 + 2 * i, i) for i in range(4)), *(verify(3.0 + 5 * i, i) for i in range(4))],
    ),
    # At 13 s request 6 is in hand and three wait for verify: a lead of 2. At 15 s four wait, until 18 s.
    "a draft waits while the verify queue leads by more than two": (
        8, {}, (0, 0.5),
        [*(draft(1.0 + 2 * i, i) for i in range(7)), draft(18.0, 7), *(verify(3.0 + 5 * i, i) for i in range(8))],
    ),
    # Polls every 4 s. At 22 s request 7 is in hand and four wait for verify, which takes one at 27 s.
    "a draft that waits for verify wakes without a poll": (
        8, {"poll_s": 4.0}, (4, 0.5),
        [*(draft(8.0 + 2 * i, i) for i in range(7)), draft(27.0, 7), *(verify(12.0 + 5 * i, i) for i in range(8))],
    ),
    # 0.5 s after each verify; one request alone is served atomically, two are not.
    "accepted tokens of one are run again on the verify stream": (
        1, {"kv": KvMode.REFORWARD}, (0, 0.5), [draft(1.0, 0), verify(3.0, 0), AGAIN[0]]
    ),
    "accepted tokens of two are run again on the verify stream": (
        2, {"kv": KvMode.REFORWARD}, (0, 0.5), [draft(1.0, 0), draft(3.0, 1), verify(3.0, 0), verify(8.5, 1), *AGAIN]
    ),
}  # fmt: skip
"""Requests, options, when prompts begin and how long a pass of them takes, and what the other lanes do."""


@pytest.mark.parametrize(("count", "options", "of_prompts", "lanes"), LANES.values(), ids=LANES)
def test_lanes_go_as_summed_by_hand(
    count: int, options: dict[str, Any], of_prompts: tuple[float, float], lanes: WorkLog
) -> None:
    drafts = NotedController(options.get("draft_tokens", 4), 4)
    run = run_pdv(count, drafts=drafts, **{key: options[key] for key in options if key != "draft_tokens"})
    assert sorted(run.works) == sorted([*prompts(count, *of_prompts), *lanes])


def test_the_controller_hears_how_long_a_draft_took_and_who_waits_for_verify() -> None:
    """Request 7 waits for its turn from 15 to 18 s, which is no part of its draft."""
    drafts = NotedController(4, 4)
    run_pdv(8, drafts=drafts)
    assert drafts.drafts == [(2.0, 0), (2.0, 0), (2.0, 1), (2.0, 1), (2.0, 2), (2.0, 2), (2.0, 3), (2.0, 3)]


def test_by_its_queue_a_lane_takes_half_of_the_active_so_that_both_have_work() -> None:
    """Four are prefilled at 1 s: decode takes two of them, then the other two while the first are verified."""
    run = run_pdv(4, pass_s=0.125, decode_batch=None, verify_batch=None, batch_by=BatchBy.QUEUE)
    assert [work[4] for work in run.works if work[3] == "draft"][-2:] == [(1, 2), (3,)]
    assert {len(work[4]) for work in run.works if work[3] != "prefill"} <= {1, 2}


def test_a_prompt_in_chunks_is_awaited_piece_by_piece() -> None:
    """Ten tokens by four: three passes of the target and three of the draft, half a second each."""
    run = run_pdv(1, limits=EngineLimits(long_prefill_token_threshold=4))
    chunks = [ticket.work.chunks for ticket in run.tickets if ticket.work.kind is Kind.PREFILL]
    assert chunks == [((4, 0),), ((4, 4),), ((2, 8),)] * 2
    assert run.serving.requests[0].first_token_s == 3.0
    submitted_s = [ticket.submitted_s for ticket in run.tickets if ticket.work.kind is Kind.PREFILL]
    assert submitted_s == [0.0, 0.5, 1.0, 1.5, 1.5, 1.5]


def test_preemptive_lanes_stop_what_is_below_them() -> None:
    """Decode 1-3 s stops the prompt of request 1, which needs another half second after it; verify 3-8 s stops it as
    well, so its second half ends at 8.5 s."""
    contention = Contention(regime=Regime.SERIAL, is_preemptive=True)
    run = run_pdv(2, pass_s=0.5, contention=contention, stream_priorities="preemptive", hybrid_requests=0)
    ends = {(work[3], work[4]): work[1] for work in run.works}
    assert ends["draft", (0,)] == 3.0
    assert ends["verify", (0,)] == 8.0
    assert [work[1] for work in run.works if work[3] == "prefill"] == [0.5, 1.0, 8.5, 9.0]
