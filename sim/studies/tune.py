"""Which draft length at which load: a closed loop at every concurrency and draft length, in every draw that the
evidence allows, and of that a table by batch size, or one length where a table is not surely better.

Draws are paired: all settings meet the same requests, acceptance and costs, so that ratios vary less than they do. A
length is chosen for the least expected regret, that is what it loses on average against the best one of each draw; what
the answer is said to lose is what choices made without a draw lose in it. Not here: draws, the words of an engine's
command line (serve_commands), how it is shown (sim.cli.tune).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import msgspec
import numpy as np

from sim.compare.point_runs import Point, run_points
from sim.compare.pool import OnDone, Runner, lasting
from sim.compare.side_by_side import CostSource, cost_source
from sim.costs.profile import Profile
from sim.costs.work_costs import graph_sizes
from sim.draws import Floats
from sim.files.json_values import Json
from sim.metrics.summary import Run, number
from sim.policies.registry import find_policy
from sim.run.limits import limits_of
from sim.run.resolve import resolve, resolve_all, with_keys
from sim.run.scenario import PlainScenario, Scenario, to_plain
from sim.studies.cost_draws import DEFAULT_DRAWS, Draw, cost_draws, covers
from sim.studies.evidence import asked_of, evidence
from sim.studies.length_choice import (
    MIN_FOR_VERDICT,
    PLAIN,
    Choice,
    Fits,
    Gain,
    LengthGrid,
    TunedPoint,
    break_even,
    choice_of,
    plausible_lengths,
    regrets_of,
    tuned_point,
)
from sim.studies.plan.answer import Answer, Stated
from sim.studies.serve_commands import Deployment, deployment
from sim.workload.generate import TraceArrivals, at_most

TUNING_SCHEMA = 1
REQUESTS_PER_SLOT, MIN_REQUESTS = 8, 48
"""Length of a run with its concurrency left open; the first of them per slot are left out."""
MEMORY_SHARE = 0.8
"""Share of the mean requests that memory holds, so that hardly any has to give way to others."""
IDLE = "K = 0"
IDLE_MEASURED = (
    "an engine may lose more: TPOT was 7 % longer at 2 and 22 % at 189 in flight (vLLM 0.27.1, V1 runner, vllm#49548)"
)
"""A Gemma-4-31B in FP8 on an H100 NVL; no constant stands for the rest of it (docs/validation/engines.md)."""
FURTHER, LONGEST = 2, 16
"""Lengths that are tried beyond the longest one while that is the answer, and where this ends."""


class Tuning(Stated, frozen=True, kw_only=True):
    """What `tune --json` holds."""

    schema: int = TUNING_SCHEMA
    scenario: PlainScenario
    profile: CostSource
    objective: str
    draws: int
    covers: str
    verdict: str
    """The answer in a line: a table, one length, or no speculation."""
    table: list[list[int]]
    """[first batch size, last one, draft length], as vLLM has it; of one row where one length is as good."""
    gain: Gain
    """Gain of the best table over the best single length, whichever is the answer."""
    break_even_concurrency: float | None
    """Where the best draft length from 1 on gains nothing any more; None where it does at every concurrency tried."""
    break_even_interval: tuple[float | None, float | None]
    """5 to 95 % of the draws; None as above."""
    expected_regret: float
    """Mean over the concurrencies of what the answer loses against the best length of a draw that had no part in
    choosing it."""
    points: list[TunedPoint]
    deployment: Deployment
    notes: list[str]
    evidence: list[str]
    """The nearest measured cells and the simulator's errors there."""

    @property
    def answer(self) -> Answer:
        """The answer for one engine, one replica."""
        return Answer(
            k_table=self.table,
            break_even_concurrency=self.break_even_concurrency,
            replicas=1,
            evidence=self.evidence,
        )


@lasting()
def tune(
    scenario: Scenario,
    profile: Profile,
    *,
    concurrencies: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    draws: int = DEFAULT_DRAWS,
    workers: int | None = None,
    target_model: str | None = None,
    draft_model: str | None = None,
    on_done: OnDone = lambda stage, done, total: None,
) -> Tuning:
    """The best draft length by batch size for the scenario's requests, engine and drafter.

    `lengths` are tried, by default 0 up to num_speculative_tokens and beyond while the longest one is the answer;
    `concurrencies`, by default 1, 2, 4 and so on up to the most requests that the engine seats. Raises ValueError for a
    scenario that cannot be tuned.
    """
    scenario = checked(scenario, profile, draws)
    tried = concurrencies_of(scenario, profile) if concurrencies is None else rising("concurrency", concurrencies, 1)
    most = scenario.speculation.num_speculative_tokens
    candidates = tuple(range(most + 1)) if lengths is None else rising("draft length", lengths, 0)
    if candidates[-1] < 1:
        raise ValueError("tune: want some draft length from 1 on to try (num_speculative_tokens, --lengths)")
    drawn = cost_draws(scenario, profile, draws, scenario.seed)
    runner = Runner(workers, on_done)
    grid = simulate_grid(scenario, drawn, tried, candidates, runner)
    while lengths is None and _is_at_edge(scenario, profile, grid) and grid.lengths[-1] < LONGEST:
        grid = _with_longer(scenario, drawn, grid, runner)
        scenario = _drafting(scenario, grid.lengths[-1])
    return answer(scenario, profile, grid, target_model=target_model, draft_model=draft_model)


def concurrencies_of(scenario: Scenario, profile: Profile) -> tuple[int, ...]:
    """1, 2, 4 and so on up to the engine's seats, the scenario's own max_concurrency, or MEMORY_SHARE of the requests
    that memory holds, whichever is fewest: a batch that is kept small by memory is no larger with more in flight."""
    resolved = resolve(scenario, profile, scenario.policy[0])
    sample, pool = resolved.served.sample(scenario.seed).requests, resolved.new_pool()
    held = pool.num_blocks * len(sample) / sum(pool.blocks_for(request) for request in sample)
    seats = resolved.limits.max_num_seqs
    most = max(1, min(seats, scenario.workload.max_concurrency or seats, int(MEMORY_SHARE * held)))
    return (*(2**power for power in range(most.bit_length()) if 2**power < most), most)


def simulate_grid(
    scenario: Scenario,
    draws: Sequence[Draw],
    concurrencies: Sequence[int],
    lengths: Sequence[int],
    runner: Runner,
) -> LengthGrid:
    """Run every setting at every concurrency in every draw; without a drafter, too."""
    settings = (PLAIN, *lengths)
    values = _settings_values(scenario, draws, concurrencies, settings, runner)
    return LengthGrid(tuple(concurrencies), settings, values)


def _with_longer(scenario: Scenario, draws: Sequence[Draw], grid: LengthGrid, runner: Runner) -> LengthGrid:
    """`grid` with the next FURTHER lengths."""
    further = tuple(range(grid.lengths[-1] + 1, min(grid.lengths[-1] + FURTHER, LONGEST) + 1))
    values = _settings_values(scenario, draws, grid.concurrencies, further, runner)
    return LengthGrid(grid.concurrencies, (*grid.settings, *further), np.concatenate([grid.values, values], axis=1))


def _is_at_edge(scenario: Scenario, profile: Profile, grid: LengthGrid) -> bool:
    """Whether the longest length that was tried is the answer, or a row of it."""
    max_batch = max(limits_of(scenario, profile).max_num_seqs, grid.concurrencies[-1])
    choice = choice_of(
        grid, fits_of(scenario, profile), max_batch, may_be_table=grid.values.shape[2] >= MIN_FOR_VERDICT
    )
    return grid.lengths[-1] in choice.lengths


def _drafting(scenario: Scenario, most: int) -> Scenario:
    return with_keys(scenario, speculation={"num_speculative_tokens": most})


def _settings_values(
    scenario: Scenario,
    draws: Sequence[Draw],
    concurrencies: Sequence[int],
    settings: Sequence[int],
    runner: Runner,
) -> Floats:
    """[concurrencies, settings, draws]"""
    points = [
        _point(scenario, concurrency, setting, max(settings), draw)
        for concurrency in concurrencies
        for setting in settings
        for draw in draws
    ]
    stage = f"simulating K up to {max(settings)}"
    values = objective_values(scenario, points, stage, runner)
    return values.reshape(len(concurrencies), len(settings), len(draws))


def answer(
    scenario: Scenario,
    profile: Profile,
    grid: LengthGrid,
    *,
    target_model: str | None = None,
    draft_model: str | None = None,
) -> Tuning:
    """What the grid says. Pure."""
    limits, fits = limits_of(scenario, profile), fits_of(scenario, profile)
    max_batch = max(limits.max_num_seqs, grid.concurrencies[-1])
    num_draws = grid.values.shape[2]
    choice = choice_of(grid, fits, max_batch, may_be_table=num_draws >= MIN_FOR_VERDICT)
    table, chosen = choice.table, choice.lengths
    regrets = regrets_of(grid, fits, max_batch)
    points = [tuned_point(grid, fits, i, k, regret) for i, (k, regret) in enumerate(zip(chosen, regrets, strict=True))]
    middle, interval = break_even(grid, fits)
    in_flight = float(grid.concurrencies[0]), float(grid.concurrencies[-1])
    return Tuning(
        scenario=to_plain(scenario),
        profile=cost_source(profile),
        objective=objective(scenario),
        draws=num_draws,
        covers=covers(scenario, profile),
        verdict=sentence(choice),
        table=[list(row) for row in table],
        gain=choice.gain,
        break_even_concurrency=middle,
        break_even_interval=interval,
        expected_regret=sum(point.expected_regret for point in points) / len(points),
        points=points,
        deployment=deployment(
            scenario,
            profile,
            table,
            plausible_lengths(grid, fits, table),
            target_model=target_model,
            draft_model=draft_model,
        ),
        notes=_notes(scenario, profile, grid, choice, fits),
        evidence=evidence(
            profile,
            [
                asked_of(scenario, profile, scenario.policy[0], in_flight, lengths)
                for lengths in ((0,), tuple(k for k in grid.lengths if k > 0))
            ],
        ),
    )


def sentence(choice: Choice) -> str:
    """`a table: K = 3 for 1..8, K = 0 for 9..64`, one length, or no speculation."""
    if choice.is_table:
        return "a table: " + ", ".join(f"K = {k} for {start}..{end}" for start, end, k in choice.table)
    return "no speculation" if choice.lengths[0] == PLAIN else f"one length: K = {choice.lengths[0]}"


def fits_of(scenario: Scenario, profile: Profile) -> Fits:
    """Draft lengths that fit the captured graphs and the token budget of the scenario's engine on that GPU."""
    budget = limits_of(scenario, profile).max_num_scheduled_tokens
    return Fits(max_graph_tokens=_max_graph_tokens(scenario, profile), max_tokens=budget)


# -- saying


def _notes(scenario: Scenario, profile: Profile, grid: LengthGrid, choice: Choice, fits: Fits) -> list[str]:
    notes = []
    table, longest = choice.table, grid.lengths[-1]
    if longest in choice.lengths:
        notes.append(f"the answer is the longest draft that was tried, K = {longest}: longer ones may be better still")
    if 0 in grid.lengths:
        notes.append(idle_note(scenario, profile))
    beyond = [k for k in grid.lengths if k > 0 and not fits(k, grid.concurrencies[-1])]
    if beyond and fits.max_graph_tokens is not None:
        notes.append(
            f"no row's batch x (K + 1) exceeds the {fits.max_graph_tokens} tokens of the largest captured graph"
        )
    if len(table) > 1:
        notes.append(
            "vLLM captures full graphs for a table with model runner V2 only; V1 falls back to piecewise ones, about "
            "7 ms a step more at small batch on a GH200 (vLLM 0.23, swiss-ai/apertus-speculative-decoding)"
        )
    if grid.values.shape[2] < MIN_FOR_VERDICT:
        notes.append(f"fewer than {MIN_FOR_VERDICT} draws: one length is named whatever a table would gain")
    return notes


def idle_note(scenario: Scenario, profile: Profile) -> str:
    """Why a draft length of 0 is not as fast as an engine without a drafter."""
    drafting = limits_of(scenario, profile)
    plain = limits_of(_drafting(scenario, 0), profile)
    what = "its memory, and its KV of every token"
    if plain.async_scheduling and not drafting.async_scheduling:
        what += ", and a step that is planned only after the one before it"
    return f"{IDLE} keeps the drafter loaded and drafts nothing: what it costs is {what}; {IDLE_MEASURED}"


def objective(scenario: Scenario) -> str:
    return "request goodput" if _has_slo(scenario) else "output throughput"


# -- running


def checked(scenario: Scenario, profile: Profile, draws: int) -> Scenario:
    """The scenario with fixed draft lengths. Raises ValueError unless its one policy is `continuous` and `draws` at
    least 1."""
    if draws < 1:
        raise ValueError(f"draws={draws!r} must be at least 1")
    if len(scenario.policy) != 1 or not find_policy(scenario.policy[0]).is_continuous:
        raise ValueError(
            f"tune: draft lengths by batch size are for --policy continuous, got {', '.join(scenario.policy)}"
        )
    if scenario.policy[0] != "continuous":
        raise ValueError(f"policy {scenario.policy[0]!r} never drafts: tune wants --policy continuous")
    without = {"num_speculative_tokens_per_batch_size": None, "speculative_adaptive_config": None}
    scenario = with_keys(scenario, speculation={"controller": "fixed", **without})
    resolve_all(scenario, profile)
    return scenario


def rising(name: str, values: Iterable[int], least: int) -> tuple[int, ...]:
    found = tuple(sorted(values))
    if len(set(found)) < len(found):
        raise ValueError(f"{name}: {', '.join(map(str, found))}: a value stands twice")
    if not found or found[0] < least:
        raise ValueError(f"{name}: {list(found)} must be at least one number from {least} on")
    return found


def _point(scenario: Scenario, concurrency: int, setting: int, most: int, draw: Draw) -> Point:
    """One closed loop. A length of 0 beside others has the drafter loaded, as a table's 0 has."""
    changes: dict[str, Json]
    if setting == 0:
        changes = {
            "num_speculative_tokens": most,
            "controller": "by_batch",
            "num_speculative_tokens_per_batch_size": ((1, concurrency, 0),),
        }
    else:
        changes = {"num_speculative_tokens": max(setting, 0)}
    looped = with_keys(closed_loop(scenario, concurrency), speculation=changes)
    return Point(resolved=resolve(draw.scenario(looped), draw.profile, scenario.policy[0]), seed=draw.seed)


def closed_loop(scenario: Scenario, concurrency: int) -> Scenario:
    """`scenario` with so many requests in flight at all times, as many of them as tell of that."""
    workload = scenario.workload
    count = at_most(workload, max(MIN_REQUESTS, REQUESTS_PER_SLOT * concurrency))
    if isinstance(workload.num_prompts, int):
        count = workload.num_prompts
    sized = workload.sized(count, workload.num_warmups or min(concurrency, count // 4))
    loop: dict[str, Json] = {
        "request_rate": inf,
        "max_concurrency": concurrency,
        "trace_arrivals": TraceArrivals.RESCALED,
    }
    return with_keys(msgspec.structs.replace(scenario, workload=sized), workload=loop)


def objective_value(run: Run, scenario: Scenario) -> float:
    """What is maximised: requests a second that meet the SLOs where some are given, else tokens a second."""
    if _has_slo(scenario):
        return number(run, "request_goodput") or 0.0
    return number(run, "steady_output_throughput") or number(run, "output_throughput") or 0.0


def objective_values(scenario: Scenario, points: Sequence[Point], stage: str, runner: Runner) -> Floats:
    """The objective's value of every one of `points` [points], in their order."""
    return np.array([objective_value(outcome.run, scenario) for outcome in run_points(points, runner, stage)])


def _has_slo(scenario: Scenario) -> bool:
    return any(bound is not None for bound in scenario.goodput.bounds_ms.values())


def _max_graph_tokens(scenario: Scenario, profile: Profile) -> int | None:
    sizes = graph_sizes(profile.host) if scenario.engine.cuda_graph else []
    return max(sizes) if sizes else None
