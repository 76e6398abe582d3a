"""Unified PDV: one worker, three streams, at most one prompt in flight, a spinning poll when idle (seed 002)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from sim.engine.serving import Serving
from sim.policies import rounds
from sim.policies.choices import may_prefill
from sim.policies.options import EngineLimits, PolicyOptions, rows_per_work
from sim.seam.host import Ticket
from sim.seam.lane import Lane
from sim.seam.request import Request


def coroutines(serving: Serving, options: PolicyOptions, limits: EngineLimits) -> list[Coroutine[Any, None, None]]:
    return [_worker(serving, options, limits)]


async def _worker(serving: Serving, options: PolicyOptions, limits: EngineLimits) -> None:
    """Keep one prefill and one round in flight; whichever ends first is committed and followed up."""
    host = serving.host
    draft_stream = host.stream("draft", priority=options.priority(2), sm_share=options.share("draft"))
    verify_stream = host.stream("verify", priority=options.priority(1), sm_share=options.share("verify"))
    prefill_stream = host.stream("prefill", sm_share=options.share("prefill"))
    draft_tokens_max = serving.controller.draft_tokens_max
    at_most = rows_per_work(options, limits, options.decode_batch, draft_tokens_max)
    decode_batch = limits.lane_batch(options.decode_batch, draft_tokens_max)
    decode = Lane("decode")
    prompt: tuple[Request, Ticket] | None = None
    round_: tuple[list[Request], Ticket, float] | None = None
    while True:
        if (
            prompt is None
            and may_prefill(len(decode), decode_batch, options.queue_factor)
            and (request := serving.admit_now()) is not None
        ):
            prompt = request, rounds.submit_prefill(serving, request, prefill_stream)
        if round_ is None and len(decode):
            batch = decode.take_now(host, at_most=at_most)
            verify = rounds.submit_round(serving, batch, options, draft_stream, verify_stream)
            round_ = batch, verify, host.now_s
        in_flight = [item[1] for item in (round_, prompt) if item is not None]
        if not in_flight:
            await host.wait(serving.intake, poll_s=options.spin_s)
            continue
        await host.first(*in_flight)
        if round_ is not None and round_[1].is_done:
            batch, verify, started_s = round_
            round_ = None
            await decode.put_all(host, await rounds.finish_round(serving, batch, options, verify, verify_stream))
            serving.controller.saw_draft(host.now_s - started_s, len(decode))
        if prompt is not None and prompt[1].is_done:
            request, _ = prompt
            prompt = None
            serving.commit_prefill(request)
            if not request.is_finished:
                await decode.put(host, request)
