"""Unified PDV: one worker, three streams, at most one prompt in flight, a spinning poll when idle (report 002).

Pipelined it keeps a prefill and a round in flight, as the report's slides draw it. Its code is sequential: each
call ends in a synchronisation, so a loop is at most one prefill and then one round of every request that decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine.serving import Serving
from sim.interface.host import Ticket
from sim.interface.request import Request
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import Task
from sim.policies import rounds
from sim.policies.options import EngineLimits, LaneOptions, keys, rows_per_work
from sim.policies.policy import Policy

SPIN_S = 0.00001
"""Seconds between two looks of the idle worker (report 002)."""
PREFILL_FACTOR = 1.2
"""A prompt is taken in while fewer than so many batches decode, the one in flight counted (report 002)."""


@dataclass(frozen=True, kw_only=True)
class UnifiedOptions(LaneOptions):
    """Options of `unified`."""

    pipelined: bool = True
    """unified: a prefill and a round run at the same time. false: the report's single thread, which takes in at most
    one prompt and then serves each request of its decode queue once."""


def coroutines(serving: Serving, options: UnifiedOptions, limits: EngineLimits) -> list[Task]:
    host, longest = serving.host, serving.controller.draft_tokens_max
    draft_stream = host.stream("draft", priority=options.priority(2), sm_share=options.share("draft"))
    verify_stream = host.stream("verify", priority=options.priority(1), sm_share=options.share("verify"))
    prefill_stream = host.stream("prefill", sm_share=options.share("prefill"))
    decode = RequestQueue("decode")
    at_most = rows_per_work(options, limits, options.decode_batch, longest)
    decode_batch = limits.lane_batch(options.decode_batch, longest)

    async def sequential() -> None:
        """One thread: at most one prompt, then one round of the oldest batch of its decode queue, each call awaited."""
        while True:
            request = serving.admit_now() if len(decode) < PREFILL_FACTOR * decode_batch else None
            if request is not None:
                await rounds.submit_prefill(serving, request, prefill_stream)
                serving.commit_prefill(request)
                if not request.is_finished:
                    await decode.put(host, request)
            elif not len(decode):
                await serving.came(poll_s=options.looks_every_s(SPIN_S))
                continue
            waiting = decode.take_now(host, at_most=decode_batch)
            for start in range(0, len(waiting), at_most):
                batch = waiting[start : start + at_most]
                await decode.put_all(host, await rounds.run_round(serving, batch, options, draft_stream, verify_stream))

    async def pipelined() -> None:
        """Keep one prefill and one round in flight; whichever ends first is committed and followed up."""
        prompt: tuple[Request, Ticket, Ticket] | None = None
        """The request whose prompt is in the target; tickets of that, and of the draft model's after it."""
        drafting: tuple[Request, Ticket] | None = None
        """The request that is in the draft model, and its ticket."""
        round_: tuple[list[Request], Ticket, float] | None = None
        while True:
            num_decoding = len(decode) + (len(round_[0]) if round_ is not None else 0) + (drafting is not None)
            may_prefill = prompt is None and num_decoding < PREFILL_FACTOR * decode_batch
            if may_prefill and (request := serving.admit_now()) is not None:
                prompt = request, *rounds.submit_prompts(serving, request, prefill_stream)
            if round_ is None and len(decode):
                batch = decode.take_now(host, at_most=at_most)
                verify = rounds.submit_round(serving, batch, options, draft_stream, verify_stream)
                round_ = batch, verify, host.now_s
            # A prompt that is through the target is followed up once the draft model is free, so that is waited for.
            in_flight = [item[1] for item in (round_, drafting or prompt) if item is not None]
            if not in_flight:
                await serving.came(poll_s=options.looks_every_s(SPIN_S))
                continue
            await host.first(*in_flight)
            if round_ is not None and round_[1].is_done:
                batch, verify, started_s = round_
                round_ = None
                await decode.put_all(host, await rounds.finish_round(serving, batch, options, verify, verify_stream))
                serving.controller.saw_draft(host.now_s - started_s, len(decode))
            if drafting is None and prompt is not None and prompt[1].is_done:
                drafting, prompt = (prompt[0], prompt[2]), None
            if drafting is not None and drafting[1].is_done:
                request, drafting = drafting[0], None
                serving.commit_prefill(request)
                if not request.is_finished:
                    await decode.put(host, request)

    return [pipelined() if options.pipelined else sequential()]


POLICY = Policy(
    name="unified",
    summary="one worker, three streams",
    is_built_in=True,
    source="report 002",
    build=coroutines,
    chooses_drafter=True,
    needs_draft=True,
    takes=keys(UnifiedOptions, but=["batch_by"]),
    lanes=(("prefill",), ("draft", "verify")),
)
