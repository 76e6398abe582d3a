"""A table of draft lengths by batch size for each of several prompt lengths, and what one table for all of them loses.

Rows are those of vLLM's proposal (vllm#48627): [first batch size, last one, first context, last one, draft length].
Not here: one table (sim.studies.tune), choosing (sim.studies.length_choice).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import msgspec

from sim.compare.pool import OnDone, Runner, lasting
from sim.compare.side_by_side import CostSource, cost_source
from sim.costs.profile import Profile
from sim.names import in_words
from sim.run.limits import limits_of
from sim.run.resolve import with_keys
from sim.run.scenario import PlainScenario, Scenario, to_plain
from sim.studies.cost_draws import DEFAULT_DRAWS, cost_draws, covers
from sim.studies.length_choice import MIN_FOR_VERDICT, best_table, break_even, choice_of, loss_of, shared_table
from sim.studies.plan.answer import Stated
from sim.studies.tune import checked, concurrencies_of, fits_of, objective, rising, sentence, simulate_grid

CONTEXTS_SCHEMA = 1
FIXED = "fixed"


class AtContext(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of one length."""

    prompt_tokens: int
    verdict: str
    """What `tune` answers for prompts of this length: a table, one length, or no speculation."""
    table: list[list[int]]
    """[first batch size, last one, draft length]; 0 has the drafter loaded, as `tune` has it. The last batch size is
    the most requests in flight that were simulated."""
    break_even_concurrency: float | None
    """Where no draft length gains anything over an engine without a drafter; None where some always does."""
    regret: float
    """What `table` loses on average against the best length of each draw, or no drafter, mean over the concurrencies,
    share; the draws are those that chose it."""
    regret_without: float
    """Likewise of the one table for all contexts."""


class ContextTuning(Stated, frozen=True, kw_only=True):
    """What `tune --contexts --json` holds."""

    schema: int = CONTEXTS_SCHEMA
    scenario: PlainScenario
    profile: CostSource
    objective: str
    draws: int
    covers: str
    contexts: list[AtContext]
    table: list[list[int]]
    """[first batch size, last one, first context, last one, draft length]: between two prompt lengths that were tried
    the bound is their geometric mean."""
    table_without: list[list[int]]
    """The one table for all contexts, of least regret over them."""
    verdict: str
    """The sentence: those of the contexts."""
    not_simulated: list[str]
    """Loads that the engine takes and no row is for, or for which a row stands that was tried at other ones."""
    regret: float
    """Mean over the contexts, of a table for each."""
    regret_without: float


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
    concurrencies, unless given, as many as each context has room for. Raises ValueError as `tune` does, and for a
    workload that has its own lengths."""
    name = scenario.workload.dataset_name
    if name != FIXED:
        raise ValueError(f"contexts: the requests of {name!r} have lengths of their own; want an output length alone")
    prompts = rising("context", contexts, 1)
    scenario = checked(scenario, profile, draws)
    candidates = rising("length", lengths or range(scenario.speculation.num_speculative_tokens + 1), 0)
    if candidates[-1] < 1:
        raise ValueError("tune: want some draft length from 1 on to try (num_speculative_tokens, --lengths)")
    fits, grids = fits_of(scenario, profile), []
    for tokens in prompts:
        of_length = with_keys(scenario, workload={"input_len": tokens})
        tried = rising("concurrency", concurrencies or concurrencies_of(of_length, profile), 1)
        drawn = cost_draws(of_length, profile, draws, scenario.seed)

        def on_step(stage: str, done: int, total: int, tokens: int = tokens) -> None:
            on_done(f"{tokens} tokens: {stage}", done, total)

        grids.append(simulate_grid(of_length, drawn, tried, candidates, Runner(workers, on_step)))
    without = shared_table(grids, fits, max(grid.concurrencies[-1] for grid in grids))
    tables = [best_table(grid, fits, grid.concurrencies[-1]) for grid in grids]
    choices = [choice_of(grid, fits, grid.concurrencies[-1], may_be_table=draws >= MIN_FOR_VERDICT) for grid in grids]
    found = [
        AtContext(
            prompt_tokens=tokens,
            verdict=sentence(choice),
            table=[list(row) for row in table],
            break_even_concurrency=break_even(grid, fits)[0],
            regret=loss_of(grid, fits, table),
            regret_without=loss_of(grid, fits, without),
        )
        for tokens, grid, table, choice in zip(prompts, grids, tables, choices, strict=True)
    ]
    return ContextTuning(
        scenario=to_plain(scenario),
        profile=cost_source(profile),
        objective=objective(scenario),
        draws=draws,
        covers=covers(scenario, profile),
        contexts=found,
        table=rows_by_context(found, profile.target.max_context),
        table_without=[list(row) for row in without],
        verdict="; ".join(f"{each.prompt_tokens} tokens: {each.verdict}" for each in found),
        not_simulated=_not_simulated(found, limits_of(scenario, profile).max_num_seqs, profile.target.max_context),
        regret=sum(each.regret for each in found) / len(found),
        regret_without=sum(each.regret_without for each in found) / len(found),
    )


def _not_simulated(found: Sequence[AtContext], max_num_seqs: int, max_context: int) -> list[str]:
    """What the rows leave out, and what they are stretched over."""
    by_last: dict[int, list[str]] = {}
    for each in found:
        by_last.setdefault(each.table[-1][1], []).append(str(each.prompt_tokens))
    lines = [
        f"more than {last} in flight with prompts of {in_words(tokens)} tokens (the engine takes {max_num_seqs})"
        for last, tokens in by_last.items()
        if last < max_num_seqs
    ]
    first, last = found[0].prompt_tokens, found[-1].prompt_tokens
    beyond = [f"below {first}"] * (first > 1) + [f"above {last}"] * (last < max_context)
    return [*lines, f"prompts {in_words(beyond)} tokens: their rows are those of the nearest"] if beyond else lines


def rows_by_context(found: Sequence[AtContext], max_context: int) -> list[list[int]]:
    """The tables with the contexts for which they hold; neighbours that are alike hold for both."""
    distinct = [found[0], *(each for before, each in pairwise(found) if each.table != before.table)]
    changes = [
        round(sqrt(before.prompt_tokens * each.prompt_tokens))
        for before, each in pairwise(found)
        if each.table != before.table
    ]
    starts, ends = [0, *changes], [*(change - 1 for change in changes), max(max_context, found[-1].prompt_tokens)]
    return [
        [first, last, start, end, k]
        for each, start, end in zip(distinct, starts, ends, strict=True)
        for first, last, k in each.table
    ]
