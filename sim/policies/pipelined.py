"""Pipelined: the draft model drafts the next window while the target verifies the last one. A rejection throws the
window in flight away (report 000, phase 1, and PEARL, Liu et al. 2024, arXiv 2408.11850).

All rows go in step. In a step the draft model drafts a window of `draft_tokens` for every row, going on from its newest
tokens, while the target checks the window before. A row whose last window was rejected has none: the target computes
its next token, and the window that is drafted meanwhile counts if it begins with that one. So what a row has to verify
is a window less its first token, and a hit also says that the token after it was guessed. Every draft is made before
the newest features of the target exist: a head that reads them has its stale acceptance (speculation.stale_acceptance).
A row whose prompt the draft model still computes is decoded by the target alone. The draft model may have a GPU of its
own (`pools: {draft: 1}`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.engine.serving import Serving
from sim.interface.host import Ticket
from sim.interface.request import Request
from sim.interface.request_queue import RequestQueue
from sim.interface.wait import Task
from sim.interface.work import Kind, Model, Work
from sim.policies import rounds
from sim.policies.disaggregated import PooledOptions
from sim.policies.options import CHUNK, EngineLimits, keys, rows_per_work
from sim.policies.pd import prefill_lane
from sim.policies.policy import Policy
from sim.policies.rounds import DraftPrompts


def coroutines(serving: Serving, options: PooledOptions, limits: EngineLimits) -> list[Task]:
    decode, host, controller = RequestQueue("decode"), serving.host, serving.controller
    verify_stream = host.stream("verify", priority=options.priority(1))
    draft_stream = host.stream("draft", device=min(1, options.pools.draft), priority=options.priority(2))
    prefill_stream = host.stream("prefill")
    prompts = DraftPrompts(lambda _: draft_stream)
    windows: dict[int, int] = {}
    """Tokens that each row has to verify, by arrival index."""

    async def steps() -> None:
        """Step after step over the oldest requests of the lane; the rest wait until one of these is through."""
        at_most = rows_per_work(options, limits, options.decode_batch, controller.draft_tokens_max)
        rows: list[Request] = []
        while True:
            if not rows:
                await rounds.filled(serving, decode, options)
            rows += decode.take_now(host, at_most=at_most - len(rows))
            started_s = host.now_s
            lengths = [max(1, length) for length in controller.lengths_for(rows)]
            drafting = [row for row in rows if prompts.is_done(row)]
            after = prompts.take(drafting)
            ahead_s = serving.ahead_s(rows, verify_stream)
            draft = submit_ahead(drafting, max(lengths), after, ahead_s) if drafting else None
            verify = submit_check(rows, {row.index for row in drafting}, ahead_s)
            accepted = (await verify).accepted
            is_hit = [count > windows.get(row.index, 0) for row, count in zip(rows, accepted, strict=True)]
            if draft is not None and any(is_hit):
                await draft
            elif draft is not None:
                draft.cancel()
            counts = [min(count, windows.get(row.index, 0)) for row, count in zip(rows, accepted, strict=True)]
            going_on = serving.commit_rounds(rows, counts)
            windows.clear()
            for row, length, hit in zip(rows, lengths, is_hit, strict=True):
                if hit and not row.is_finished:
                    windows[row.index] = length - 1
            rows = going_on
            controller.saw_draft(host.now_s - started_s, 0)

    def submit_ahead(rows: Sequence[Request], window: int, after: Sequence[Ticket], ahead_s: float) -> Ticket:
        """The next window of every row, from its newest drafted token on."""
        work = Work(
            kind=Kind.DRAFT,
            model=Model.DRAFT,
            requests=tuple(rows),
            rows=len(rows),
            row_tokens=len(rows),
            context_tokens=sum(row.context_tokens + windows.get(row.index, 0) for row in rows),
            head_rows=len(rows),
            draft_tokens=window,
        )
        return rounds.submit(serving, work, draft_stream, after, ahead_s)

    def submit_check(rows: Sequence[Request], drafting: set[int], ahead_s: float) -> Ticket:
        """The rows' windows and a token each through the target. What comes back may be one more than a window holds,
        for rows that are `drafting`: the token after it was guessed, too, by the first of the next window."""
        pending = [windows.get(row.index, 0) for row in rows]
        row_tokens = sum(pending) + len(rows)
        for row, tokens in zip(rows, pending, strict=True):
            serving.open_round(row, tokens)
        work = Work(
            kind=Kind.VERIFY,
            requests=tuple(rows),
            rows=len(rows),
            row_tokens=row_tokens,
            context_tokens=sum(row.context_tokens for row in rows),
            head_rows=row_tokens,
            drafted=[tokens + (row.index in drafting) for row, tokens in zip(rows, pending, strict=True)],
        )
        return rounds.submit(serving, work, verify_stream, (), ahead_s)

    apart = prompts if options.pools.draft else None
    return [steps(), prefill_lane(serving, options, limits, decode, prefill_stream, apart)]


POLICY = Policy(
    name="pipelined",
    summary="drafts the next window while the target verifies the last one; a rejection throws it away",
    is_built_in=True,
    source="report 000, PEARL",
    build=coroutines,
    needs_draft=True,
    drafts_ahead=True,
    num_gpus=lambda options: 1 + min(1, options.pools.draft),
    takes=(*keys(PooledOptions, but=["kv", "batch_by", "partition"]), CHUNK),
)
