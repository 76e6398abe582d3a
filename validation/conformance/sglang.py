"""Cases for SGLang's scheduler, drawn by seed or recorded, and what lanesim plans for them.

A case has requests (some with a prefix in common), seats, a chunk size, memory of pages of one token, and drafts whose
acceptance is a function of request and position; each step takes a second. Equal means: the same steps at the same
times, each with the same rows in the same order or the same chunks of the same prompts after the same cached tokens, so
that admissions and retractions are equal as well.
Not here: SGLang's own code (sglang_scheduler), and the comparison (validation.conformance.replayed).
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import msgspec

from sim.costs.engine_costs import load_engine
from sim.engine.controllers import build_controller
from sim.engine.radix import RadixPool
from sim.engine.serving import AdmissionCaps, Serving
from sim.hosts.scripted import ScriptHost
from sim.interface.request import Request
from sim.interface.work import Kind, Result, Work
from sim.policies.continuous.loop import coroutines
from sim.policies.options import EngineLimits, RoundOptions

ENGINE, GPU = "sglang-0.5", "h100-sxm"
VARIATIONS: dict[str, dict[str, Any]] = {
    "": {},
    "memory short": {"is_tight": True},
    "prefix in common": {"prefix": 50},
    "prefix in common, memory short": {"prefix": 50, "is_tight": True},
    "prefill_decode_interval": {"intervals": (1, 3, 8)},
    "several seats free": {"min_free_seats": 4},
}
"""What a schedule is drawn to show, as arguments of `drawn`."""
KINDS: dict[str, dict[str, Any]] = {
    ", ".join(filter(None, ("overlap" * is_overlap, f"{drafts} drafts", name))): {
        "is_overlap": is_overlap,
        "draft_tokens": drafts,
        **given,
    }
    for is_overlap in (False, True)
    for drafts in (0, 1, 3, 7)
    for name, given in VARIATIONS.items()
    if drafts in (0, 3) or not name
}
PREFIX_IDS, ID_STRIDE = 1 << 29, 1 << 14


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


class SglangCase(msgspec.Struct, frozen=True):
    """Requests, and the limits under which they are served."""

    seed: int
    requests: tuple[Asked, ...]
    max_num_seqs: int
    max_num_batched_tokens: int
    num_tokens: int
    draft_tokens: int
    is_overlap: bool
    prefill_decode_interval: int = 0
    min_free_seats: int = 0
    engine: str = ENGINE

    def accepted(self, index: int, emitted_tokens: int) -> int:
        return (7 * index + 3 * emitted_tokens + self.seed) % (self.draft_tokens + 1)

    def token_ids(self, index: int) -> list[int]:
        prompt, prefix = self.requests[index].prompt_tokens, self.requests[index].prefix_tokens
        return [*range(PREFIX_IDS, PREFIX_IDS + prefix), *range(index * ID_STRIDE, index * ID_STRIDE + prompt - prefix)]


class SglangLog(msgspec.Struct, frozen=True):
    """A case, and the steps that SGLang planned for it."""

    kind: str
    case: SglangCase
    steps: list[PlannedStep]

    @property
    def name(self) -> str:
        return f"{self.kind}, seed {self.case.seed}"

    @property
    def engine(self) -> str:
        return self.case.engine


def drawn(
    seed: int,
    engine: str,
    *,
    draft_tokens: int,
    is_overlap: bool,
    is_tight: bool = False,
    prefix: int = 0,
    intervals: tuple[int, ...] = (0,),
    min_free_seats: int = 0,
) -> SglangCase:
    random = Random(f"{seed} {draft_tokens} {is_overlap} {is_tight} {prefix} {intervals} {min_free_seats}")
    arrival_s, requests = 0.0, list[Asked]()
    seats, rate, longest = random.choice([2, 3, 5, 8, 48]), random.choice([0.05, 0.3, 2.0]), random.choice([8, 60, 300])
    for index in range(random.randint(4, 24)):
        arrival_s += random.expovariate(rate)
        shared = prefix if random.random() < 0.7 else 0
        prompt, output = shared + random.randint(1, 200), random.randint(2, longest)
        requests.append(Asked(int(arrival_s) + (index + 1) / 1024, prompt, output, shared))
    lives = sorted((each.prompt_tokens + each.output_tokens + 2 * draft_tokens + 3 for each in requests), reverse=True)
    tight = lives[0] + random.randint(0, max(1, sum(lives[1:4])))
    return SglangCase(
        seed,
        tuple(requests),
        seats,
        random.choice([16, 64, 256, 2048]),
        tight if is_tight else 2 * sum(lives),
        draft_tokens,
        is_overlap,
        random.choice(intervals),
        min_free_seats,
        engine,
    )


def simulated(case: SglangCase) -> list[PlannedStep]:
    """The steps that lanesim plans for `case` with the rules of its engine."""
    works: list[tuple[float, Work]] = []

    def answer(work: Work) -> Result:
        if work.kind is not Kind.STEP:
            return Result(())
        works.append((host.now_s, work))
        rows = work.requests[: work.rows]
        return Result([case.accepted(row.index, row.emitted_tokens) if case.draft_tokens else 0 for row in rows])

    host = ScriptHost(lambda work: float(work.kind is Kind.STEP), answer)
    rules = load_engine(case.engine, GPU).rules
    limits = EngineLimits(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        async_scheduling=case.is_overlap,
        mixes_prompts=False,
        token_ratio=rules.token_ratio,
        drafts_before_verify=rules.drafts_before_verify,
        prefill_decode_interval=case.prefill_decode_interval,
        min_free_seats=case.min_free_seats,
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
        AdmissionCaps(None, case.max_num_seqs, case.max_num_batched_tokens),
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
