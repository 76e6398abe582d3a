"""PDV: prefill, decode and verify lanes on three streams, with priority decode > verify > prefill (reports 000, 004).

Decode waits while verify's queue exceeds that of decode by more than 2. Hybrid: with at most
`hybrid_requests` active ones, 1 unless given, the decode lane drafts and verifies as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sim.bounds import Bounds
from sim.engine.serving import Serving
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import Task
from sim.policies import rounds
from sim.policies.options import CHUNK, COUNT, EngineLimits, LaneOptions, keys, rows_per_work
from sim.policies.pd import prefill_lane
from sim.policies.policy import Policy

VERIFY_LEAD = 2
"""Requests by which the verify queue exceeds decode's before it goes first (report 000)."""


@dataclass(frozen=True, kw_only=True)
class PdvOptions(LaneOptions):
    """Options of `pdv`."""

    verify_batch: Annotated[int | None, Bounds(1, COUNT)] = None
    """pdv: largest batch of a verify; null = max_num_seqs."""
    hybrid_requests: Annotated[int, Bounds(0, COUNT)] = 1
    """pdv: with at most this many active requests, draft and verify run as one; 0: never."""


def coroutines(serving: Serving, options: PdvOptions, limits: EngineLimits) -> list[Task]:
    host, controller, longest = serving.host, serving.controller, serving.controller.draft_tokens_max
    decode, verify = RequestQueue("decode"), RequestQueue("verify")
    decode_stream = host.stream("decode", priority=options.priority(2), sm_share=options.share("decode"))
    verify_stream = host.stream("verify", priority=options.priority(1), sm_share=options.share("verify"))
    prefill_stream = host.stream("prefill", sm_share=options.share("prefill"))

    async def decode_lane() -> None:
        at_most = rows_per_work(options, limits, options.decode_batch, longest)
        while True:
            batch = await rounds.take_batch(serving, decode, options, at_most, num_lanes=2)
            if serving.num_active <= options.hybrid_requests:
                going_on = await rounds.run_round(serving, batch, options, decode_stream, verify_stream)
                await decode.put_all(host, going_on)
                continue
            while len(verify) > len(decode) + len(batch) + VERIFY_LEAD:
                await host.wait(verify.changed)
            started_s = host.now_s
            await rounds.submit_draft(serving, batch, options, decode_stream, controller.lengths_for(batch))
            controller.saw_draft(host.now_s - started_s, len(verify))
            await verify.put_all(host, batch)

    async def verify_lane() -> None:
        at_most = rows_per_work(options, limits, options.verify_batch, longest)
        while True:
            batch = await rounds.take_batch(serving, verify, options, at_most, num_lanes=2)
            ticket = rounds.submit_verify(serving, batch, options, verify_stream)
            await decode.put_all(host, await rounds.finish_round(serving, batch, options, ticket, verify_stream))

    return [decode_lane(), verify_lane(), prefill_lane(serving, options, limits, decode, prefill_stream)]


POLICY = Policy(
    name="pdv",
    summary="prefill, decode and verify lanes, three streams",
    is_built_in=True,
    source="reports 000, 004",
    build=coroutines,
    chooses_drafter=True,
    needs_draft=True,
    takes=(*keys(PdvOptions), CHUNK),
    lanes=(("prefill",), ("decode",), ("verify",)),
)
