"""Continuous batching as in vLLM: every step one target pass of verify rows and prefill chunks under a token budget.

RUNNING goes before WAITING, draft tokens consume budget, prompts come in chunks of what is left, admission is first
come first served by KV capacity. Drafting follows the target pass on the same stream and the step is over when both
are: then tokens are emitted. Without speculation this is `autoregressive`.

The draft pass is padded to two tokens per row (the newest, and the one that is missing after full acceptance) because
the host submits it before it knows what was accepted. Not here: the same decisions with lazy accounting
(continuous_lazy).
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from sim.host import Stream
from sim.policies.choices import next_chunk
from sim.policies.options import EngineLimits, PolicyOptions
from sim.request import Request
from sim.serving import Serving
from sim.work import Chunk, Kind, Model, Work

DRAFT_ROW_TOKENS = 2
"""Tokens per row of a padded first draft pass."""


class Step(NamedTuple):
    """What one pass carries: `rows` decode or verify, `prompts` prefill one `chunks` entry each."""

    rows: list[Request]
    prompts: list[Request]
    chunks: tuple[Chunk, ...]

    @property
    def completed(self) -> list[Request]:
        """Prompts whose last chunk this is."""
        return [
            request
            for request, chunk in zip(self.prompts, self.chunks, strict=True)
            if chunk.history_tokens + chunk.new_tokens == request.prompt_tokens
        ]


def coroutines(serving: Serving, options: PolicyOptions, limits: EngineLimits) -> list[Coroutine[Any, None, None]]:
    return [_engine(serving, limits, serving.host.stream("gpu"))]


async def _engine(serving: Serving, limits: EngineLimits, stream: Stream) -> None:
    host = serving.host
    running: list[Request] = []
    while True:
        step = plan_step(serving, running, limits)
        if not step.rows and not step.prompts:
            await host.wait(serving.intake)
            continue
        completed = step.completed
        ticket = host.run(step_work(step, len(completed)), stream)
        target = ticket
        draft_tokens = serving.controller.draft_tokens
        if draft_tokens:
            ticket = host.run(draft_work(step, completed, draft_tokens), stream)
        await ticket
        going_on = serving.commit_rounds(step.rows, (await target).accepted)
        for request, chunk in zip(step.prompts, step.chunks, strict=True):
            serving.commit_chunk(request, chunk.new_tokens)
        going_on.extend(request for request in completed if not request.is_finished)
        for request in going_on:
            serving.open_round(request, draft_tokens)
        running = [request for request in running if not request.is_finished]


def plan_step(serving: Serving, running: list[Request], limits: EngineLimits) -> Step:
    """Fill one step's budget: running requests first, oldest first, then new ones, which join `running`."""
    budget = limits.max_num_batched_tokens
    rows: list[Request] = []
    prompts: list[Request] = []
    chunks: list[Chunk] = []
    for request in running:
        if budget <= 0:
            break
        if request.prefilled_tokens == request.prompt_tokens:
            if request.drafted >= budget:
                serving.trim_draft(request, budget - 1)
            rows.append(request)
            budget -= request.drafted + 1
        elif (chunk := next_chunk(request, budget)) is not None:
            prompts.append(request)
            chunks.append(chunk)
            budget -= chunk.new_tokens
    while budget > 0 and len(running) < limits.max_num_seqs and (admitted := serving.admit_now()) is not None:
        running.append(admitted)
        chunk = Chunk(min(admitted.prompt_tokens, budget), 0)
        prompts.append(admitted)
        chunks.append(chunk)
        budget -= chunk.new_tokens
    return Step(rows, prompts, tuple(chunks))


def step_work(step: Step, num_completed: int) -> Work:
    row_tokens = sum(request.drafted + 1 for request in step.rows)
    return Work(
        kind=Kind.STEP,
        requests=(*step.rows, *step.prompts),
        rows=len(step.rows),
        row_tokens=row_tokens,
        context_tokens=sum(request.context_tokens for request in step.rows),
        chunks=step.chunks,
        head_rows=row_tokens + num_completed,
    )


def draft_work(step: Step, completed: Sequence[Request], draft_tokens: int) -> Work:
    """Drafts for every row that sampled in this step, and the draft model's share of the prefill."""
    num_rows = len(step.rows) + len(completed)
    return Work(
        kind=Kind.DRAFT,
        model=Model.DRAFT,
        requests=(*step.rows, *completed, *step.prompts),
        rows=num_rows,
        row_tokens=DRAFT_ROW_TOKENS * num_rows,
        context_tokens=sum(request.context_tokens for request in step.rows)
        + sum(request.prompt_tokens for request in completed),
        chunks=step.chunks,
        head_rows=num_rows,
        draft_tokens=draft_tokens if num_rows else 0,
    )
