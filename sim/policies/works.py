"""Works of requests: what each pass of a speculative round computes. Pure.

Not here: submitting (sim.policies.rounds).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from sim.drafters.drafter import Drafter
from sim.interface.request import Request
from sim.interface.work import DRAFT, DRAFT_MODEL, STEP, VERIFY, Chunk, Kind, Model, Work


def prefill(request: Request, model: Model, max_tokens: int | None = None, *, drafter: int = 0) -> list[Work]:
    """The whole prompt, in passes of at most `max_tokens`; the last one of the target samples the first token."""
    works = prompt_passes(request, model, 0, request.prompt_tokens, max_tokens, drafter)
    if model is Model.TARGET:
        works[-1] = msgspec.structs.replace(works[-1], head_rows=1)
    return works


def prompt_passes(
    request: Request, model: Model, start: int, goal: int, max_tokens: int | None, drafter: int
) -> list[Work]:
    """Passes of at most `max_tokens` for the tokens of `request` from `start` to `goal`, which its KV lacks."""
    max_tokens = max_tokens or goal
    return [
        Work(
            kind=Kind.PREFILL,
            model=model,
            requests=(request,),
            chunks=(Chunk(min(max_tokens, goal - done), done),),
            drafter=drafter,
        )
        for done in range(start, goal, max_tokens)
    ]


def draft(requests: Sequence[Request], draft_tokens: int, *, drafter: int = 0) -> Work:
    """`draft_tokens` passes of the draft model; the first takes a catch-up token along where one is missing."""
    num_rows = len(requests)
    return Work(
        kind=DRAFT,
        model=DRAFT_MODEL,
        requests=requests,
        rows=num_rows,
        row_tokens=num_rows + sum([request.needs_catch_up for request in requests]),
        context_tokens=sum([request.context_tokens for request in requests]),
        head_rows=num_rows if draft_tokens else 0,
        draft_tokens=draft_tokens,
        drafter=drafter,
    )


def verify(requests: Sequence[Request], drafters: Sequence[int] = ()) -> Work:
    """Each row's draft plus one token through the target; a row without a draft is a plain decode. `drafters` as Work
    has them."""
    row_tokens = sum([request.drafted + 1 for request in requests])
    return Work(
        kind=VERIFY,
        requests=requests,
        rows=len(requests),
        row_tokens=row_tokens,
        context_tokens=sum([request.context_tokens for request in requests]),
        head_rows=row_tokens,
        drafters=drafters,
    )


def reforward(requests: Sequence[Request], accepted: Sequence[int]) -> Work:
    """The accepted tokens once more through the target, after verify and before they are committed."""
    row_tokens = sum(accepted) + len(requests)
    return Work(
        kind=Kind.PREFILL,
        requests=requests,
        rows=len(requests),
        row_tokens=row_tokens,
        context_tokens=sum(request.context_tokens for request in requests),
    )


def draft_without_kv(requests: Sequence[Request], draft_tokens: int, *, drafter: int = 0) -> list[Work]:
    """One full pass of the draft model over the whole sequence per drafted token."""
    return [
        Work(
            kind=DRAFT,
            model=DRAFT_MODEL,
            requests=requests,
            chunks=tuple(Chunk(request.context_tokens + 1 + depth, 0) for request in requests),
            head_rows=len(requests),
            drafter=drafter,
        )
        for depth in range(draft_tokens)
    ]


def verify_without_kv(requests: Sequence[Request], drafters: Sequence[int] = ()) -> Work:
    """One full pass of the target over sequence and draft."""
    return Work(
        kind=VERIFY,
        requests=requests,
        chunks=tuple(Chunk(request.context_tokens + 1 + request.drafted, 0) for request in requests),
        head_rows=sum(request.drafted + 1 for request in requests),
        drafters=drafters,
    )


# -- steps of continuous batching


class StepLoad(NamedTuple):
    """A step in numbers, and the requests that its works name."""

    num_rows: int
    row_tokens: int
    context_tokens: int
    """KV tokens of the rows."""
    chunks: tuple[Chunk, ...]
    prompts: Sequence[Request]
    completed: Sequence[Request]
    """Prompts whose last chunk this is."""
    rows: Sequence[Request]
    max_drafted: int = 0
    """Longest draft that its rows verify."""


def step_work(load: StepLoad, ahead_s: float, group_tokens: int = 0) -> Work:
    """The target pass, which could be prepared for `ahead_s`, among `group_tokens` of all ranks."""
    return Work(
        kind=STEP,
        requests=(*load.rows, *load.prompts),
        rows=load.num_rows,
        row_tokens=load.row_tokens,
        context_tokens=load.context_tokens,
        chunks=load.chunks,
        group_tokens=group_tokens,
        head_rows=load.row_tokens + len(load.completed),
        ahead_s=ahead_s,
    )


def draft_work(load: StepLoad, draft_tokens: int, method: Drafter) -> Work:
    """Drafts for every row that sampled in this step, and the draft model's share of the prefill; a draft of 0 tokens
    only brings the draft model's KV up to date."""
    completed = load.completed
    num_rows = load.num_rows + len(completed)
    context_tokens = load.context_tokens
    for request in completed:
        context_tokens += request.prefill_goal
    requests = (*load.rows, *completed, *load.prompts)
    return method.draft(num_rows, load.row_tokens, context_tokens, load.chunks, draft_tokens, requests)


def later_drafts(load: StepLoad, ahead_s: float) -> Work:
    """All passes of its rows' drafts but the first, which ended the step before; prepared for `ahead_s`."""
    return Work(
        kind=DRAFT,
        model=DRAFT_MODEL,
        requests=tuple(load.rows),
        rows=load.num_rows,
        row_tokens=load.num_rows,
        context_tokens=load.context_tokens,
        head_rows=load.num_rows,
        draft_tokens=load.max_drafted - 1,
        goes_on=True,
        ahead_s=ahead_s,
    )
