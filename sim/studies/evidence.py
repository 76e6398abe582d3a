"""Cells that were measured near a question, the simulator's error there, and the interval of a level.

Cells are real serving runs, or means over some, with the source of their figures (sim/evidence/cells.json, made by
validation.judge.evidence). A cell is near where GPU, the target's layers and drafting method are the question's, and
its requests in flight and draft length are within a factor of two. No constant was fitted on any cell. An error of a
speed-up is no evidence of a level, whose errors cancel in it, and stands on a separate line.
Not here: errors of kernels, which a profile states itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from math import exp, hypot, log, log2
from operator import attrgetter
from pathlib import Path

import msgspec

from sim.acceptance.forms import in_full
from sim.acceptance.pairs import ANY
from sim.compare.capacity import NEAR_SATURATION
from sim.compare.point_runs import Point, run_point
from sim.compare.side_by_side import Comparison, Level, restated
from sim.compare.verdict import METRIC, STATED, Order, PolicySummary, sign_of
from sim.costs.engine_costs import EngineCosts, with_engine
from sim.costs.profile import Profile
from sim.draws import child_seed
from sim.metrics.compared import EQUAL_PCT
from sim.metrics.load import BUSY_SHARE
from sim.metrics.summary import number
from sim.names import in_words, span
from sim.run.resolve import Resolved
from sim.studies.cost_draws import with_times
from sim.studies.served_errors import HIGH_95, LOW_95, level_errors, measured_name, served_errors, unmeasured
from sim.workload.generate import num_requests

FOLDER = Path(__file__).parent.parent / "evidence"
CELLS = FOLDER / "cells.json"
FACTOR = 2.0
SLOWER = 1.05
"""Factor on all steps, where the elasticity of latency to them is wanted."""
FEW_PROMPTS, MANY_PROMPTS = 100, 1000
"""Requests of a run that tells what constants do to a latency: where queues are short, and near saturation."""
MOST_TIMES = 10.0
"""Factor on latency beyond which a range is none: such a server might not keep up with the load at all."""
Z_975 = 1.96
NONE = "none"
"""The method where nothing is drafted."""
MEAN_SIZE = "(mean size)"
"""End of a metric whose errors have no sign."""
SPEEDUP = "speed-up"
"""Beginning of a metric that is a ratio of two levels."""
MEASURED, UNMEASURED, NEAREST = "measured nearest", "not measured", "Nearest measured,"
"""Beginnings of lines of evidence, and words instead of near cells."""
REPLAYED = "Measured on a real"
"""Beginning of the line on replays of the very set-ups that are asked about."""


class EvidenceCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One measured cell, or the mean size of the error over some that differ in lengths alone."""

    gpu: str
    engine: str
    model: str
    method: str
    k: int
    in_flight: int
    workload: str
    metric: str
    error_pct: float
    """Simulated over measured, less one."""
    speedup_error_pct: float | None
    source: str
    runs: int = 1
    """Runs that the mean size of the error is over."""
    has_experts: bool = False
    policy: str = ""
    """Of a replay: the policy that a real GPU ran, after its latency had been predicted."""
    measured_ms: float = 0.0
    """Mean E2EL of a replay."""

    @property
    def is_level(self) -> bool:
        """A latency or throughput was measured, not a ratio of two."""
        return not self.metric.startswith(SPEEDUP)


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    cells: tuple[EvidenceCell, ...]


class SeparateServersErrors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean sizes of the errors on separate prefill and decode servers that others measured."""

    schema: int
    source: str
    page: str
    cells: int
    tpot_mean_abs_pct: float
    ttft_mean_abs_pct: float

    @property
    def note(self) -> str:
        sizes = f"time per token {self.tpot_mean_abs_pct:.0f} % off and first tokens {self.ttft_mean_abs_pct:.0f} %"
        return f"separate servers: {sizes}, at {self.cells} measured loads ({self.page})"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Method, lengths and loads that are asked about."""

    method: str
    """`none`, or what drafts."""
    ks: tuple[int, ...]
    in_flight: tuple[float, float]
    """Fewest and most requests."""
    engine: str = ""
    """Its cells, of whatever version, are named before others'."""
    policy: str = ""
    workload: str = ""
    """Lengths and acceptance, such as `512 + 128 tokens, iid:0.7`."""


def asked_of(resolved: Resolved, in_flight: tuple[float, float], ks: Sequence[int] | None = None) -> Question:
    """The question about a policy with so many requests in flight, at the scenario's draft length or `ks`."""
    workload, speculation = resolved.scenario.workload, resolved.scenario.speculation
    lengths = (speculation.num_speculative_tokens,) if ks is None else tuple(ks)
    drafts = resolved.policy.is_speculative and any(lengths)
    return Question(
        method=resolved.limits.method.name if drafts else NONE,
        ks=tuple(k for k in lengths if k) if drafts else (0,),
        in_flight=in_flight,
        engine=resolved.engine.name,
        policy=resolved.policy.name,
        workload=f"{workload.input_len} + {workload.output_len} tokens"
        + drafts * f", {in_full(speculation.acceptance)}",
    )


def asked_of_comparison(result: Comparison, policies: Sequence[Resolved]) -> list[Question]:
    """One question per policy, at its mean number of requests in flight (Little's law), or the loop's."""
    questions = []
    for row, one in zip(result.policies, policies, strict=True):
        rate, e2el_ms = row.mean["request_throughput"], row.mean["mean_e2el_ms"]
        in_flight = one.scenario.workload.max_concurrency or (rate or 0.0) * (e2el_ms or 0.0) / 1e3
        questions.append(asked_of(one, (in_flight, in_flight)))
    return questions


@lru_cache(maxsize=1)
def measured() -> Evidence:
    return msgspec.json.decode(CELLS.read_bytes(), type=Evidence)


def separate_servers_errors() -> SeparateServersErrors:
    return msgspec.json.decode((FOLDER / "separate_servers.json").read_bytes(), type=SeparateServersErrors)


def evidence(profile: Profile, asked: Sequence[Question]) -> list[str]:
    """The cells near each question and their errors, a line for levels and one for speed-ups; questions without levels
    share a line where the same cells come nearest."""
    gpu, model = profile.gpu.name, measured_name(profile.target)
    unmeasured = dict[str, tuple[list[Question], list[str]]]()
    has_speedups = False
    replayed = [cell for question in asked for cell in measured().cells if is_replay(cell, gpu, model, question)]
    lines = [replay_line(replayed)] if replayed else []
    ran = {cell.policy for cell in replayed}
    for question in (each for each in asked if each.policy not in ran):
        like = (cell for cell in measured().cells if not _differs(cell, gpu, model, question))
        near = sorted(filter(partial(_is_near, question), like), key=partial(_is_other_engine, question))
        near_levels, near_speedups = ([cell for cell in near if cell.is_level is kind] for kind in (True, False))
        lines += [f"{MEASURED}: {_named(cells)}" for cells in (near_levels, near_speedups) if cells]
        has_speedups = has_speedups or bool(near_speedups)
        if not near_levels:
            nearest, names = _nearest(profile, question)
            questions, differing = unmeasured.setdefault(nearest, ([], []))
            questions.append(question)
            differing += names
    for nearest, (questions, differing) in unmeasured.items():
        another = " and ".join(dict.fromkeys(differing)) or "load"
        lines.append(
            f"{UNMEASURED}: {'no latency' if has_speedups else 'nothing'} on {gpu} with {profile.target.name} within a "
            f"factor of {FACTOR:g} of these loads ({_loads(questions)}). {NEAREST} with another {another}: {nearest}"
        )
    return list(dict.fromkeys(lines))


def is_replay(cell: EvidenceCell, gpu: str, model: str, asked: Question) -> bool:
    """A GPU ran this very set-up, policy and load."""
    if not cell.policy or (cell.policy, cell.engine) != (asked.policy, asked.engine) or cell.k not in asked.ks:
        return False
    # An acceptance that is not stated is that of the replay, which the line names.
    if asked.workload not in (cell.workload, f"{cell.workload.partition(', ')[0]}, {ANY}"):
        return False
    return all(load == cell.in_flight for load in asked.in_flight) and not _differs(cell, gpu, model, asked)


def replay_line(cells: Sequence[EvidenceCell]) -> str:
    """What a GPU took for each policy, how far off the simulator is there, and which policy was faster."""
    ranked = sorted(cells, key=lambda cell: cell.measured_ms)
    (first, *others), faster = ranked, ""
    if others:
        less = 100.0 * (1.0 - first.measured_ms / others[0].measured_ms)
        equal = f" {first.policy} and {others[0].policy} were equal."
        faster = f" {first.policy} was {less:.0f} % faster." if less >= EQUAL_PCT else equal
    shown = in_words([f"{cell.policy} {cell.measured_ms:,.0f} ms" for cell in ranked])
    errors = in_words([f"{abs(cell.error_pct):.0f} % {'high' if cell.error_pct > 0 else 'low'}" for cell in ranked])
    gpu, drafted = first.gpu.partition("-")[0].upper(), [each.workload for each in ranked if each.k]
    given = f" at acceptance {drafted[0].partition(', ')[2]}" if drafted else ""
    return f"{REPLAYED} {gpu}{given}, one run each: mean E2EL {shown}.{faster} The simulator is {errors} there."


def as_replayed(result: Comparison, policies: Sequence[Resolved]) -> Comparison:
    """`result` without the orders that turn round where errors on replays near the load are taken out of the means."""
    ratios = {
        one.label: {
            cell.in_flight: 1.0 / (1.0 + cell.error_pct / 100.0)
            for cell in measured().cells
            if cell.policy and cell.engine == asked.engine and _is_near(asked, cell)
            if not _differs(cell, one.profile.gpu.name, measured_name(one.profile.target), asked)
        }
        for one, asked in zip(policies, asked_of_comparison(result, policies), strict=True)
    }
    means = {row.policy: row.mean[METRIC] or 0.0 for row in result.policies}
    paired = list(result.paired)
    for at, row in enumerate(paired):
        ours, theirs = ratios[row.a], ratios[row.b]
        errors = [
            means[row.a] * (ours[load] - 1.0) - means[row.b] * (theirs[load] - 1.0) for load in ours.keys() & theirs
        ]
        if errors and row.metric == METRIC and row.order in STATED and row.interval is not None:
            interval = row.interval[0] + min(0.0, *errors), row.interval[1] + max(0.0, *errors)
            if sign_of(interval) is not row.order:
                paired[at] = msgspec.structs.replace(row, order=Order.REPLAYS, interval=interval)
    return result if paired == result.paired else restated(result, policies, paired)


def levels(result: Comparison, policies: Sequence[Resolved]) -> list[Level]:
    """The interval of the mean E2EL of each of the `policies` of a comparison, where it is steady and has one: the
    simulator is as far off as it was on served cells (served_errors). Pooled constants of an engine that was not
    measured come on top, and near saturation latency answers to errors of step times by its elasticity to them."""
    named, profile = {one.label: one for one in policies}, policies[0].profile
    engine, gpu, model = policies[0].engine, profile.gpu.name, measured_name(profile.target)
    levels_of_policies = []
    for row, asked in zip(result.policies, asked_of_comparison(result, policies), strict=True):
        mean_ms, ci95 = row.mean["mean_e2el_ms"], row.ci95["mean_e2el_ms"]
        if mean_ms is None or not row.load.is_steady:
            continue
        num_set_ups = len(served_errors().known(engine.name, gpu, model))
        is_known = num_set_ups > 0 or any(
            cell.is_level and cell.engine == engine.name and not _differs(cell, gpu, model, asked)
            for cell in measured().cells
        )
        slowed, elasticity = _perturbed(result, named[row.policy], row, None if is_known else engine)
        errors = level_errors(named[row.policy], drafts=asked.method != NONE)
        noise = 0.0 if ci95 is None else (ci95[1] - ci95[0]) / 2.0 / mean_ms
        constants = Z_975 * log(slowed or 1.0)
        below, above = (
            hypot((elasticity or 1.0) * max(0.0, far), constants, noise)
            for far in (errors.at(HIGH_95), -errors.at(LOW_95))
        )
        if above > log(MOST_TIMES):
            continue
        levels_of_policies.append(
            Level(
                policy=row.policy,
                mean_e2el_ms=mean_ms,
                interval=(mean_ms * exp(-below), mean_ms * exp(above)),
                error_pct=(100.0 * (exp(-errors.at(HIGH_95)) - 1.0), 100.0 * (exp(-errors.at(LOW_95)) - 1.0)),
                num_set_ups=num_set_ups,
                engine_pct=None if slowed is None else 100.0 * (slowed - 1.0),
                elasticity=elasticity,
                wider=unmeasured(named[row.policy]),
            )
        )
    return levels_of_policies


def _perturbed(
    result: Comparison, resolved: Resolved, row: PolicySummary, engine: EngineCosts | None
) -> tuple[float | None, float | None]:
    """Factor on mean E2EL with the constants of `engine` a standard deviation higher (None: unknown), and near
    saturation its elasticity to step times; both on the draws of the first replication."""
    is_near = (row.mean["device_utilization"] or 0.0) > BUSY_SHARE and row.load.share > NEAR_SATURATION
    error_pct = engine.error_pct if engine is not None else None
    if not error_pct and not is_near:
        return None, None
    based, workload = with_engine(resolved.profile, resolved.engine), resolved.scenario.workload
    enough = MANY_PROMPTS if is_near else FEW_PROMPTS
    first = next(run for run in result.runs if run["policy"] == row.policy)
    before_ms = number(first, "mean_e2el_ms")
    if num_requests(workload) > enough:
        resolved = resolved.changed(workload=workload.sized(enough))
        before_ms = _mean_ms(resolved.drawn(based))

    def ratio(engine_factor: float, passes: float = 1.0) -> float | None:
        after_ms = _mean_ms(resolved.drawn(with_times(based, engine=engine_factor, passes=passes)))
        return after_ms / before_ms if after_ms and before_ms else None

    slowed = ratio(exp(error_pct / 100.0)) if error_pct else None
    steeper = ratio(SLOWER, SLOWER) if is_near else None
    return slowed, None if steeper is None else max(1.0, log(steeper) / log(SLOWER))


def _mean_ms(resolved: Resolved) -> float | None:
    run = run_point(Point(resolved=resolved, seed=child_seed(resolved.scenario.seed, 0))).run
    return number(run, "mean_e2el_ms")


def _nearest(profile: Profile, asked: Question) -> tuple[str, list[str]]:
    """The cells that come nearest where none is near, and in what they differ."""
    gpu, model = profile.gpu.name, measured_name(profile.target)
    known = (cell for cell in measured().cells if cell.is_level)
    ranked = sorted(known, key=lambda cell: _distance(cell, profile, asked))
    differs = _differs(ranked[0], gpu, model, asked)
    return _named(cell for cell in ranked if _differs(cell, gpu, model, asked) == differs), differs


def _loads(questions: Sequence[Question]) -> str:
    """`no speculation, 2 in flight; draft_model, 1 and 5 in flight`: methods, each with the loads asked about."""
    loads: dict[str, set[tuple[int, int]]] = {}
    for question in questions:
        low, high = question.in_flight
        loads.setdefault(question.method, set()).add((round(low), round(high)))
    return "; ".join(
        f"{_method(method)}, {', '.join(span(map(str, ends)) for ends in sorted(loads_of))} in flight"
        for method, loads_of in loads.items()
    )


def _is_near(asked: Question, cell: EvidenceCell) -> bool:
    low, high = asked.in_flight
    is_load = low / FACTOR <= cell.in_flight <= high * FACTOR
    return is_load and any(max(cell.k, k) <= FACTOR * min(cell.k, k) for k in asked.ks)


def _is_other_engine(asked: Question, cell: EvidenceCell) -> bool:
    return asked.engine.partition("-")[0] != cell.engine.partition("-")[0]


def _differs(cell: EvidenceCell, gpu: str, model: str, asked: Question) -> list[str]:
    same = {
        "GPU": gpu == cell.gpu,
        "model": model == cell.model,
        "method": asked.method == cell.method and cell.policy in ("", asked.policy),
    }
    return [name for name, is_same in same.items() if not is_same]


def _distance(cell: EvidenceCell, profile: Profile, asked: Question) -> tuple[int, bool, bool, bool, bool, float]:
    """Fewest differences, the method the worst, then the model; then experts or none, the engine, the load."""
    differs = _differs(cell, profile.gpu.name, measured_name(profile.target), asked)
    is_other_kind = cell.has_experts != (profile.target.experts is not None)
    low, high = (max(1.0, load) for load in asked.in_flight)
    off = max(0.0, log2(low / cell.in_flight), log2(cell.in_flight / high))
    others = _is_other_engine(asked, cell)
    return len(differs), "method" in differs, "model" in differs, is_other_kind, others, off


def _named(cells: Iterable[EvidenceCell]) -> str:
    """A name for cells of one kind; the first's GPU, engine, model and source where there are several."""
    kind = attrgetter("gpu", "engine", "model", "method", "metric", "source")
    first, *others = cells
    group = [first, *(cell for cell in others if kind(cell) == kind(first))]
    ks, loads = sorted({cell.k for cell in group}), sorted({cell.in_flight for cell in group})
    drafts = _method(first.method) if first.method == NONE else f"{first.method}, K = {span(map(str, ks))}"
    sign, metric = "-" if first.metric.endswith(MEAN_SIZE) else "+", first.metric.replace(MEAN_SIZE, "off by")
    speedups = [cell.speedup_error_pct for cell in group if cell.speedup_error_pct is not None]
    count = sum(cell.runs for cell in group)
    return (
        f"{first.gpu}, {first.engine}, {first.model}, {drafts}, {span(map(str, loads))} in flight: "
        f"{metric} {_percents([cell.error_pct for cell in group], sign)}"
        + (f", speed-up {_percents(speedups)}" if speedups else "")
        + f" ({count} measurement{'s' * (count > 1)}). Source: {first.source}"
    )


def _method(name: str) -> str:
    return "no speculation" if name == NONE else name


def _percents(errors: Sequence[float], sign: str = "+") -> str:
    return f"{span(f'{error:{sign}.1f}' for error in sorted(errors))} %"
