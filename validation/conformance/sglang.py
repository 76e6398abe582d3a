"""Drawn cases that SGLang's scheduler was recorded on, and what lanesim plans for them.

A case has requests (some with a prefix in common), seats, a chunk size, memory of pages of one token, and drafts whose
acceptance is a function of request and position; each step takes a second. Equal means: the same steps at the same
times, each with the same rows in the same order or the same chunks of the same prompts after the same cached tokens, so
that admissions and retractions are equal as well.
Not here: the steps of SGLang 0.5.6 (tests/validation/sglang_steps.json.gz).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from sim.costs.engine_costs import load_engine
from sim.engine.controllers import build_controller
from sim.engine.radix import RadixPool
from sim.engine.serving import Serving
from sim.hosts.scripted import ScriptHost
from sim.interface.request import Request
from sim.interface.work import Kind, Result, Work
from sim.policies.continuous.loop import coroutines
from sim.policies.options import EngineLimits, RoundOptions

ENGINE, GPU = "sglang-0.5", "h100-sxm"
KINDS: dict[str, dict[str, Any]] = {
    "no drafts": {},
    "no drafts, memory short": {"is_tight": True},
    "no drafts, prefix in common": {"prefix": 50},
    "no drafts, prefix in common, memory short": {"prefix": 50, "is_tight": True},
    "1 draft": {"draft_tokens": 1},
    "3 drafts": {"draft_tokens": 3},
    "7 drafts": {"draft_tokens": 7},
    "3 drafts, memory short": {"draft_tokens": 3, "is_tight": True},
    "3 drafts, prefix in common": {"draft_tokens": 3, "prefix": 50},
    "overlap scheduler": {"is_overlap": True},
    "overlap scheduler, memory short": {"is_overlap": True, "is_tight": True},
    "overlap scheduler, prefix in common": {"is_overlap": True, "prefix": 50},
}
"""Arguments of `draw` by kind."""
ANSWER_IDS, PREFIX_IDS, ID_STRIDE = 1 << 30, 1 << 29, 1 << 14


class Asked(NamedTuple):
    """A request of a case."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int
    """Beginning that all requests with one have in common."""


class PlannedStep(NamedTuple):
    """One step: indices of the rows, or (index, tokens, cached or computed before) of the prompts."""

    at_s: float
    rows: tuple[int, ...]
    chunks: tuple[tuple[int, int, int], ...]


class SglangCase(NamedTuple):
    """Requests, and the limits under which they are served."""

    seed: int
    requests: tuple[Asked, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    num_tokens: int
    draft_tokens: int
    is_overlap: bool

    def accepted(self, index: int, emitted_tokens: int) -> int:
        """Drafted tokens of a round that are accepted."""
        return (7 * index + 3 * emitted_tokens + self.seed) % (self.draft_tokens + 1)

    def token_ids(self, index: int) -> list[int]:
        """The prompt."""
        prompt, prefix = self.requests[index].prompt_tokens, self.requests[index].prefix_tokens
        return [*range(PREFIX_IDS, PREFIX_IDS + prefix), *range(index * ID_STRIDE, index * ID_STRIDE + prompt - prefix)]

    def answer_id(self, index: int, position: int) -> int:
        return ANSWER_IDS + index * ID_STRIDE + position


def draw(
    seed: int, *, draft_tokens: int = 0, is_tight: bool = False, is_overlap: bool = False, prefix: int = 0
) -> SglangCase:
    """A case of that seed: memory for all who are seated, or (`is_tight`) for some."""
    random = Random(f"{seed} {draft_tokens} {is_tight} {is_overlap} {prefix}")
    num_requests = random.randint(4, 24)
    seats = random.choice([2, 3, 5, 8, 48])
    rate = random.choice([0.05, 0.3, 2.0])
    arrival_s, requests = 0.0, []
    longest = random.choice([8, 60, 300])
    for index in range(num_requests):
        arrival_s += random.expovariate(rate)
        shared = prefix if random.random() < 0.7 else 0
        requests.append(
            Asked(
                int(arrival_s) + (index + 1) / 1024,
                shared + random.randint(1, 200),
                random.randint(2, longest),
                shared,
            )
        )
    lives = sorted(
        (asked.prompt_tokens + asked.output_tokens + 2 * draft_tokens + 3 for asked in requests), reverse=True
    )
    all_fit = sum(lives) + 1
    tight = lives[0] + random.randint(0, max(1, sum(lives[1:4])))
    return SglangCase(
        seed,
        tuple(requests),
        seats,
        random.choice([16, 64, 256, 2048]),
        tight if is_tight else all_fit,
        draft_tokens,
        is_overlap,
    )


def simulated(case: SglangCase) -> list[PlannedStep]:
    """The steps that lanesim plans for `case` with the rules of ENGINE."""
    works: list[tuple[float, Work]] = []

    def answer(work: Work) -> Result:
        if work.kind is not Kind.STEP:
            return Result(())
        works.append((host.now_s, work))
        rows = work.requests[: work.rows]
        return Result([case.accepted(row.index, row.emitted_tokens) if case.draft_tokens else 0 for row in rows])

    host = ScriptHost(lambda work: float(work.kind is Kind.STEP), answer)
    rules = load_engine(ENGINE, GPU).rules
    limits = EngineLimits(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        async_scheduling=case.is_overlap,
        mixes_prompts=False,
        token_ratio=rules.token_ratio,
        drafts_before_verify=rules.drafts_before_verify,
    )
    requests = [
        Request(
            index=index,
            id=str(index),
            arrival_s=asked.arrival_s,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
            content=tuple(case.token_ids(index)),
        )
        for index, asked in enumerate(case.requests)
    ]
    serving = Serving(
        host,
        requests,
        RadixPool(
            case.num_tokens,
            1,
            2 * case.draft_tokens + 1 if case.draft_tokens else 0,
            drops_cached_block=case.draft_tokens > 0,
        ),
        build_controller("fixed", case.draft_tokens),
        max_concurrency=None,
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        plans_ahead=case.is_overlap,
    )
    for task in [*coroutines(serving, RoundOptions(), limits), serving.arrivals()]:
        host.spawn(task)
    host.run_until()
    return [_planned(at_s, work) for at_s, work in works]


def _planned(at_s: float, work: Work) -> PlannedStep:
    rows, prompts = work.requests[: work.rows], work.requests[work.rows :]
    chunks = zip(prompts, work.chunks, strict=True)
    return PlannedStep(
        round(at_s, 6),
        tuple(row.index for row in rows),
        tuple((prompt.index, chunk.new_tokens, chunk.history_tokens) for prompt, chunk in chunks),
    )


def first_difference(theirs: Sequence[PlannedStep], ours: Sequence[PlannedStep]) -> int | None:
    """Index of the first step that differs; None where all are equal."""
    for step, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their != our:
            return step
    return None if len(theirs) == len(ours) else min(len(theirs), len(ours))


def packed(steps: Sequence[PlannedStep]) -> list[list[Any]]:
    """[(start, rows, chunks, how many)]: steps of the same rows, one after the other, are one entry."""
    entries: list[list[Any]] = []
    for at_s, rows, chunks in steps:
        last = entries[-1] if entries else None
        if last is not None and rows and last[1] == rows and round(last[0] + last[3], 6) == at_s:
            last[3] += 1
        else:
            entries.append([at_s, rows, chunks, 1])
    return entries


def unpacked(entries: Sequence[Any]) -> list[PlannedStep]:
    """The steps that `packed` packed."""
    return [
        PlannedStep(round(at_s + later, 6), tuple(rows), tuple(map(tuple, chunks)))
        for at_s, rows, chunks, count in entries
        for later in range(count)
    ]
