"""Draft length by load: closed loops at every concurrency and draft length, in every variation that the evidence
allows. The result is a table by batch size, or one length where a table is not surely better.

Draws are paired: all settings meet the same requests, acceptance and costs, so that ratios vary less than they do. Rows
by context are those of vLLM's proposal (vllm#48627). Not here: choosing (length_choice), draws (cost_draws), the words
of an engine's command line (serve_commands).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, sqrt

import msgspec
import numpy as np

from sim.compare.point_runs import Point, on_points, run_point
from sim.compare.pool import OnDone, Runner, lasting
from sim.costs.profile import Profile
from sim.costs.work_costs import captured_sizes
from sim.draws import Floats
from sim.files.json_values import Json
from sim.metrics.summary import Run, number
from sim.names import in_words
from sim.run.resolve import Resolved, resolve_all, with_keys
from sim.run.scenario import Scenario
from sim.studies.answer import Answer, Stated
from sim.studies.cost_draws import DEFAULT_DRAWS, cost_draws, seeds_of, stated
from sim.studies.evidence import asked_of, evidence
from sim.studies.length_choice import (
    PLAIN,
    Choice,
    Gain,
    LengthGrid,
    TunedPoint,
    best_single,
    best_table,
    break_even,
    choice_of,
    gain_of,
    loss_of,
    plausible_lengths,
    table_words,
    tuned_points,
)
from sim.studies.serve_commands import ServeLines, deployment
from sim.workload.classes import Goodput
from sim.workload.generate import TraceArrivals, Workload, at_most

REQUESTS_PER_SLOT, MIN_REQUESTS = 8, 48
"""Length of a run with its concurrency left open; the first of them per slot are left out."""
MEMORY_SHARE = 0.8
"""Share of the mean requests that memory holds, so that hardly any has to give way to others."""
IDLE = "K = 0"
IDLE_MEASURED = "An engine may lose more: TPOT was 7 % longer at 2 and 22 % at 189 in flight (vLLM 0.27.1, vllm#49548)."
"""A Gemma-4-31B in FP8 on an H100 NVL; no constant stands for the rest of it (docs/validation/engines.md)."""
FURTHER, LONGEST = 2, 16
"""Lengths that are tried beyond the longest one while that is the answer, and where this ends."""
FIXED = "fixed"


class Tuning(Stated, frozen=True, kw_only=True, rename={"costs": "profile", "k_table": "table"}):
    objective: str
    verdict: str
    k_table: list[list[int]]
    gain: Gain
    """Gain of the best table over the best single length, whichever is the answer."""
    break_even_concurrency: float | None
    """Requests in flight above which no draft length gains. 0: none gains at any load; None: one does at the last load,
    or no speed-up is known."""
    break_even_interval: tuple[float | None, float | None]
    """5 to 95 % of the draws; 0 and None as above."""
    decided_at: int | None = None
    """Requests in flight at which a single length is the best; None: over all loads."""
    not_simulated: list[str]
    """Loads that the engine takes and for which the answer says nothing."""
    expected_regret: float
    change: Gain | None = None
    """Gain of the answer over the draft length in use, where one is."""
    points: list[TunedPoint]
    deployment: ServeLines
    notes: list[str]
    evidence: list[str]

    @property
    def length_decided(self) -> int:
        """The answer's draft length at `decided_at` requests in flight; 0 without a drafter."""
        return next(point.k for point in self.points if point.concurrency == self.decided_at)


class AtContext(Answer, frozen=True, kw_only=True, rename={"k_table": "table"}):
    prompt_tokens: int
    verdict: str
    k_table: list[list[int]]
    """The last batch size is the most requests in flight that were simulated."""
    break_even_concurrency: float | None
    regret: float
    """Mean loss of the table against the best setting of each draw that chose it, mean over the concurrencies."""
    regret_without: float
    """The same of the one table for all contexts."""


class ContextTuning(Stated, frozen=True, kw_only=True, rename={"costs": "profile", "k_table": "table"}):
    """A table of draft lengths for each of several prompt lengths, and the loss of one table for all of them."""

    objective: str
    contexts: list[AtContext]
    k_table: list[list[int]]
    """[first batch size, last one, first context, last one, draft length]: between two prompt lengths that were tried
    the bound is their geometric mean."""
    table_without: list[list[int]]
    """The one table for all contexts, of least regret over them."""
    verdict: str
    not_simulated: list[str]
    """Loads that the engine takes and no row is for, or for which a row stands that was tried at other ones."""
    regret: float
    regret_without: float


@lasting()
def tune(
    scenario: Scenario,
    profile: Profile,
    *,
    concurrencies: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    draws: int = DEFAULT_DRAWS,
    in_use: int | None = None,
    at: int | None = None,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
    **repositories: str | None,
) -> Tuning:
    """The best draft length by batch size for the scenario's requests, engine and drafter.

    `lengths` are tried, by default 0 up to num_speculative_tokens and beyond while the longest one is the answer;
    `concurrencies`, by default 1, 2, 4 and so on up to the most requests that the engine seats. `in_use` is the length
    that a server has now, or PLAIN: the answer says whether to change it. A single length is the best `at` one of the
    concurrencies, by default over all. Raises ValueError for a scenario that cannot be tuned.
    """
    resolved = _checked(scenario, profile, draws)
    tried = _loads(resolved, concurrencies)
    drawn, runner = cost_draws(resolved, draws, scenario.seed), Runner(workers, on_done)
    settings = PLAIN, *_candidates(resolved, lengths)
    grid = LengthGrid(tried, settings, _values(drawn, tried, settings, runner))
    end = resolved.quoted.measured_k or LONGEST
    while lengths is None and (most := grid.lengths[-1]) < end and most in choice_of(grid, at).lengths:
        further = tuple(range(most + 1, min(most + FURTHER, end) + 1))
        more = _values(drawn, tried, further, runner)
        grid = LengthGrid(tried, (*grid.settings, *further), np.concatenate([grid.values, more], axis=1))
        resolved = _drafting(resolved, further[-1])
    return answer(resolved, grid, in_use=in_use, at=at, **repositories)


@lasting()
def tune_contexts(
    scenario: Scenario,
    profile: Profile,
    contexts: Sequence[int],
    *,
    concurrencies: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    draws: int = DEFAULT_DRAWS,
    workers: int | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> ContextTuning:
    """`tune` with prompts of each of `contexts` tokens. Draft lengths are 0 up to num_speculative_tokens unless given;
    concurrencies, unless given, as many as each context has room for. Raises ValueError as `tune` does."""
    name = scenario.workload.dataset_name
    if name != FIXED:
        raise ValueError(f"contexts: the requests of {name!r} have lengths of their own. Give an output length alone")
    prompts = rising("context", contexts, 1)
    resolved = _checked(scenario, profile, draws)
    settings, grids = (PLAIN, *_candidates(resolved, lengths)), list[LengthGrid]()
    prompted_by = {tokens: resolved.changed(workload={"input_len": tokens}) for tokens in prompts}
    for prompted in prompted_by.values():
        prompted.served.sample(scenario.seed)
    for tokens, prompted in prompted_by.items():
        tried = _loads(prompted, concurrencies)

        def on_step(stage: str, done: int, total: int, tokens: int = tokens) -> None:
            on_done(f"{tokens} tokens: {stage}", done, total)

        drawn = cost_draws(prompted, draws, scenario.seed)
        grids.append(LengthGrid(tried, settings, _values(drawn, tried, settings, Runner(workers, on_step))))
    without = best_table(*grids)
    rows = []
    for tokens, grid in zip(prompts, grids, strict=True):
        table = best_table(grid)
        rows.append(
            AtContext(
                prompt_tokens=tokens,
                # Other contexts may want the drafter loaded.
                verdict="no speculation, or with the drafter loaded " * (best_single(grid) == PLAIN)
                + table_words(table),
                k_table=[list(row) for row in table],
                break_even_concurrency=break_even(grid)[0],
                regret=loss_of(grid, table),
                regret_without=loss_of(grid, without),
            )
        )
    max_context = profile.target.max_context
    return ContextTuning(
        **stated(resolved, draws),
        objective=objective(scenario),
        contexts=rows,
        k_table=rows_by_context(rows, max_context),
        table_without=[list(row) for row in without],
        verdict=". ".join(f"{each.prompt_tokens} tokens: {each.verdict}" for each in rows),
        not_simulated=_contexts_left_out(rows, resolved.limits.max_num_seqs, max_context),
        regret=sum(each.regret for each in rows) / len(rows),
        regret_without=sum(each.regret_without for each in rows) / len(rows),
    )


def answer(
    resolved: Resolved,
    grid: LengthGrid,
    *,
    in_use: int | None = None,
    at: int | None = None,
    **repositories: str | None,
) -> Tuning:
    """The best table or length of the grid, and all that is said of it. Pure."""
    scenario, profile = resolved.scenario, resolved.profile
    choice, sizes = choice_of(grid, at), captured_sizes(profile.host) if scenario.engine.cuda_graph else []
    largest_graph = max(sizes, default=None)
    points = tuned_points(grid, largest_graph, choice, at)
    middle, interval = break_even(grid)
    in_flight = float(grid.concurrencies[0]), float(grid.concurrencies[-1])
    # A server wants the first row from 1 on; beyond the last one it goes on with that.
    served = ((1, *choice.table[0][1:]), *choice.table[1:])
    asked = ((0,), tuple(k for k in grid.lengths if k > 0))
    change, known, most = None, resolved.quoted.measured_k or LONGEST, max(choice.lengths)
    if most > known:
        warnings.warn(f"K = {most} is a guess. Acceptance was measured with drafts of {known} tokens", stacklevel=2)
    if in_use is not None:
        chosen = np.stack([grid.of(k)[i] for i, k in enumerate(choice.lengths)])
        used = "no speculation" if in_use == PLAIN else f"K = {in_use}"
        change = gain_of(choice.sentence.removeprefix("one length: "), used, chosen, grid.of(in_use))
    return Tuning(
        **stated(resolved, grid.num_draws),
        objective=objective(scenario),
        verdict=choice.sentence,
        k_table=[list(row) for row in choice.table],
        gain=choice.gain,
        change=change,
        break_even_concurrency=middle,
        break_even_interval=interval,
        decided_at=at,
        not_simulated=_loads_left_out(grid.concurrencies[0], grid.concurrencies[-1], resolved.limits.max_num_seqs),
        expected_regret=sum(point.expected_regret for point in points) / len(points),
        points=points,
        deployment=deployment(scenario, profile, served, plausible_lengths(grid, served), **repositories),
        notes=_notes(resolved, grid, choice, largest_graph),
        evidence=evidence(profile, [asked_of(resolved, in_flight, ks) for ks in asked]),
    )


def rows_by_context(contexts: Sequence[AtContext], max_context: int) -> list[list[int]]:
    """The tables with the contexts for which they hold; neighbours that are alike hold for both."""
    changes = [(before, each) for before, each in pairwise(contexts) if each.k_table != before.k_table]
    bounds = [round(sqrt(before.prompt_tokens * each.prompt_tokens)) for before, each in changes]
    starts, ends = [0, *bounds], [*(bound - 1 for bound in bounds), max(max_context, contexts[-1].prompt_tokens)]
    return [
        [first, last, start, end, k]
        for each, start, end in zip([contexts[0], *(each for _, each in changes)], starts, ends, strict=True)
        for first, last, k in each.k_table
    ]


def concurrencies_of(resolved: Resolved) -> tuple[int, ...]:
    """1, 2, 4 and so on up to the engine's seats, the scenario's max_concurrency, or MEMORY_SHARE of the requests that
    memory holds, whichever is fewest."""
    scenario, seats = resolved.scenario, resolved.limits.max_num_seqs
    sample, pool = resolved.served.sample(scenario.seed).requests, resolved.new_pool()
    held = pool.num_blocks * len(sample) / sum(pool.blocks_for(request) for request in sample)
    in_flight = _at_once(scenario.workload, scenario.workload.max_concurrency or seats)
    most = max(1, min(seats, in_flight, int(MEMORY_SHARE * held)))
    return (*(2**power for power in range(most.bit_length()) if 2**power < most), most)


def _loads(resolved: Resolved, concurrencies: Sequence[int] | None) -> tuple[int, ...]:
    """Raises ValueError for more requests in flight than a run has."""
    tried = rising("concurrency", concurrencies_of(resolved) if concurrencies is None else concurrencies, 1)
    most, longer = _at_once(resolved.scenario.workload, tried[-1]), REQUESTS_PER_SLOT * tried[-1]
    if most < tried[-1]:
        wanted = f"Give at most {most} in flight, or --set workload.num_prompts={longer}"
        raise ValueError(f"concurrency {tried[-1]}: a run has {most} requests. {wanted}")
    return tried


def _at_once(workload: Workload, count: int) -> int:
    """`count`, but no more requests than a run has."""
    given = workload.num_prompts if isinstance(workload.num_prompts, int) else count
    return at_most(workload, min(count, given))


# -- saying


def _notes(resolved: Resolved, grid: LengthGrid, choice: Choice, largest_graph: int | None) -> list[str]:
    notes, longest = resolved.assumed, grid.lengths[-1]
    if longest in choice.lengths:
        notes.append(f"the answer is the longest draft that was tried, K = {longest}: longer ones may be better still")
    if 0 in grid.lengths:
        plain = _drafting(resolved, 0).limits
        loses_async = plain.async_scheduling and not resolved.limits.async_scheduling
        then = ", and a step that is planned only after the one before it" * loses_async
        notes.append(
            f"{IDLE} keeps the drafter loaded and drafts nothing. It costs the drafter's memory and its KV of "
            f"every token{then}. {IDLE_MEASURED}"
        )
    if largest_graph is not None:
        eager = [load for load in grid.concurrencies if load * (longest + 1) > largest_graph]
        if longest and eager:
            notes.append(
                f"steps of more than {largest_graph} tokens run without a CUDA graph, such as K = {longest} from "
                f"{eager[0]} in flight on"
            )
    if len(choice.table) > 1:
        notes.append(
            "vLLM captures full graphs for a table with model runner V2 only. V1 falls back to piecewise ones, about "
            "7 ms a step more at small batch on a GH200 (vLLM 0.23, swiss-ai/apertus-speculative-decoding)"
        )
    return notes


def _contexts_left_out(contexts: Sequence[AtContext], max_num_seqs: int, max_context: int) -> list[str]:
    """Loads that the rows leave out, and prompts that they are stretched over."""
    by_reach: dict[tuple[int, int], list[str]] = {}
    for each in contexts:
        by_reach.setdefault((each.k_table[0][0], each.k_table[-1][1]), []).append(str(each.prompt_tokens))
    lines = list[str]()
    for reach, tokens in by_reach.items():
        lines += _loads_left_out(*reach, max_num_seqs, f" with prompts of {in_words(tokens)} tokens")
    first, last = contexts[0].prompt_tokens, contexts[-1].prompt_tokens
    beyond = [f"below {first}"] * (first > 1) + [f"above {last}"] * (last < max_context)
    return [*lines, f"prompts {in_words(beyond)} tokens: their rows are those of the nearest"] if beyond else lines


def _loads_left_out(first: int, last: int, max_num_seqs: int, of: str = "") -> list[str]:
    """Loads that the engine takes beside those from `first` to `last`."""
    beyond = [f"fewer than {first}"] * (first > 1) + [f"more than {last}"] * (last < max_num_seqs)
    return [f"{in_words(beyond)} in flight{of} (the engine takes {max_num_seqs})"] if beyond else []


def has_slo(scenario: Scenario) -> bool:
    return scenario.goodput != Goodput()


def objective(scenario: Scenario) -> str:
    return "request goodput" if has_slo(scenario) else "output throughput"


# -- running


def _checked(scenario: Scenario, profile: Profile, draws: int) -> Resolved:
    """The scenario with fixed draft lengths. Raises ValueError unless its one policy is `continuous`."""
    if draws < 1:
        raise ValueError(f"draws={draws!r} must be at least 1")
    if tuple(scenario.policy) != ("continuous",):
        got = ", ".join(scenario.policy)
        raise ValueError(f"tune: draft lengths by batch size are for policy continuous, got {got}")
    fixed = {"controller": "fixed", "num_speculative_tokens_per_batch_size": None}
    (resolved,) = resolve_all(with_keys(scenario, speculation=fixed), profile)
    return resolved


def _candidates(resolved: Resolved, lengths: Sequence[int] | None) -> tuple[int, ...]:
    most = resolved.scenario.speculation.num_speculative_tokens
    candidates = rising("draft length", range(most + 1) if lengths is None else lengths, 0)
    if candidates[-1] < 1:
        raise ValueError("tune needs a draft length from 1 on, such as --lengths 1,3,5 or num_speculative_tokens=5")
    return candidates


def rising(name: str, values: Iterable[int], least: int) -> tuple[int, ...]:
    """The values in rising order. Raises ValueError for one that stands twice or is below `least`, and for none."""
    ordered = tuple(sorted(values))
    if len(set(ordered)) < len(ordered):
        raise ValueError(f"{name}: {', '.join(map(str, ordered))}: a value stands twice")
    if not ordered or ordered[0] < least:
        raise ValueError(f"{name}: {list(ordered)} must be at least one number from {least} on")
    return ordered


def _values(draws: Sequence[Resolved], concurrencies: Sequence[int], settings: Sequence[int], runner: Runner) -> Floats:
    """[concurrencies, settings, draws] values of the objective. A length of 0 beside others has the drafter loaded, as
    a table's 0 has."""
    most, table = max(settings), ((1, concurrencies[-1], 0),)
    idle: dict[str, Json] = {"controller": "by_batch", "num_speculative_tokens_per_batch_size": table}
    drafting = [
        [_drafting(draw, most if k == 0 else max(k, 0), **(idle if k == 0 else {})) for draw in draws] for k in settings
    ]
    seeded = [(one, seed) for of_setting in drafting for one, seed in zip(of_setting, seeds_of(draws), strict=True)]
    loops = [[Point(resolved=looped(one, load), seed=seed) for load in concurrencies] for one, seed in seeded]
    values = np.array(on_points(objective_values, loops, runner, f"simulating K up to {most}"))
    return values.reshape(len(settings), len(draws), len(concurrencies)).transpose(2, 0, 1)


def _drafting(resolved: Resolved, most: int, **controller: Json) -> Resolved:
    return resolved.changed(speculation={"num_speculative_tokens": most, **controller})


def looped(resolved: Resolved, concurrency: int) -> Resolved:
    """`resolved` with so many requests in flight at all times, as many of them as tell of that."""
    workload = resolved.scenario.workload
    count = at_most(workload, max(MIN_REQUESTS, REQUESTS_PER_SLOT * concurrency))
    if isinstance(workload.num_prompts, int):
        count = workload.num_prompts
    loop = msgspec.structs.replace(
        workload.sized(count, workload.num_warmups or min(concurrency, count // 4)),
        request_rate=inf,
        max_concurrency=concurrency,
        trace_arrivals=TraceArrivals.RESCALED,
    )
    return resolved.changed(workload=loop)


def objective_values(points: Sequence[Point]) -> list[float]:
    """[points] what is maximised: requests a second that meet the SLOs where some are given, else tokens a second."""
    return [_objective_value(run_point(point).run, point.resolved.scenario) for point in points]


def _objective_value(run: Run, scenario: Scenario) -> float:
    if has_slo(scenario):
        return number(run, "request_goodput") or 0.0
    return number(run, "steady_output_throughput") or number(run, "output_throughput") or 0.0
