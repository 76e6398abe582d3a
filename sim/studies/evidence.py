"""What was measured near a question, and how wrong the simulator was there: the last lines of every answer.

Cells are real serving runs with the source of their figures (sim/evidence/cells.json, made as docs/accuracy.md says);
no measured file is part of the project. A cell is near where GPU, target and drafting method are the question's and its
requests in flight, and draft length, are within a factor of two of some that were asked about. Engines are named, not
matched. Not here: errors of kernels, which a profile states itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, log2
from pathlib import Path

import msgspec

from sim.compare.side_by_side import Comparison
from sim.costs.profile import Profile
from sim.policies.registry import find_policy
from sim.run.limits import limits_of
from sim.run.scenario import Scenario, parse_scenario

CELLS = Path(__file__).parent.parent / "evidence" / "cells.json"
FACTOR = 2.0
NONE = "none"
"""The method where nothing is drafted."""
MEASURED, UNMEASURED, NEAREST = "measured nearest", "not measured", "nearest measured,"
"""How lines of evidence begin, and what comes in place of near cells."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    """Of the throughput over that without drafts on the same engine."""
    source: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: int
    cells: tuple[Cell, ...]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a question is about."""

    method: str
    """`none`, or what drafts."""
    ks: tuple[int, ...]
    in_flight: tuple[float, float]
    """Fewest and most requests."""


def asked_of(
    scenario: Scenario, profile: Profile, policy: str, in_flight: tuple[float, float], ks: Sequence[int] | None = None
) -> Asked:
    """What is asked of `policy` with so many requests in flight, at the scenario's draft length or `ks`."""
    lengths = (scenario.speculation.num_speculative_tokens,) if ks is None else tuple(ks)
    if not find_policy(policy).is_speculative or not any(lengths):
        return Asked(method=NONE, ks=(0,), in_flight=in_flight)
    method = limits_of(scenario, profile).method.value
    return Asked(method=method, ks=tuple(k for k in lengths if k), in_flight=in_flight)


def asked_of_comparison(result: Comparison, profile: Profile) -> list[Asked]:
    """One question per policy, at its mean number of requests in flight (Little's law), or the loop's."""
    scenario = parse_scenario(result.scenario)
    asked = []
    for row in result.policies:
        rate, e2el_ms = row.mean["request_throughput"], row.mean["mean_e2el_ms"]
        in_flight = scenario.workload.max_concurrency or (rate or 0.0) * (e2el_ms or 0.0) / 1e3
        asked.append(asked_of(scenario, profile, row.policy, (in_flight, in_flight)))
    return asked


@lru_cache(maxsize=1)
def cells() -> tuple[Cell, ...]:
    """All measured cells."""
    return msgspec.json.decode(CELLS.read_bytes(), type=_File).cells


def evidence(profile: Profile, asked: Sequence[Asked]) -> list[str]:
    """The cells near each question and their errors, a line per kind of them; questions without any share a line where
    the same cells come nearest.

    >>> import lanesim
    >>> profile = lanesim.load_profile("gh200/apertus-8b+eagle3")
    >>> evidence(profile, [Asked(method="none", ks=(0,), in_flight=(200.0, 200.0))])[0][:75]
    'measured nearest: gh200, vllm-0.23, apertus-8b, no speculation, 128 to 256 '
    """
    gpu, model = profile.gpu.name, profile.target.name
    lines: list[str] = []
    unmeasured: dict[str, list[Asked]] = {}
    differing: dict[str, list[str]] = {}
    for question in asked:
        near = [cell for cell in cells() if not _differs(cell, gpu, model, question) and _is_near(cell, question)]
        if near:
            lines.append(f"{MEASURED}: {_named(near)}")
            continue
        nearest, names = _nearest(gpu, model, question)
        unmeasured.setdefault(nearest, []).append(question)
        differing.setdefault(nearest, []).extend(names)
    for nearest, questions in unmeasured.items():
        another = " and ".join(dict.fromkeys(differing[nearest])) or "load"
        lines.append(
            f"{UNMEASURED}: nothing on {gpu} with {model} within a factor of {FACTOR:g} of these loads "
            f"({_loads(questions)}); {NEAREST} with another {another}: {nearest}"
        )
    return list(dict.fromkeys(lines))


def _nearest(gpu: str, model: str, asked: Asked) -> tuple[str, list[str]]:
    """The cells that come nearest where none is near, and in what they differ."""
    ranked = sorted(cells(), key=lambda cell: _distance(cell, gpu, model, asked))
    differs, source = _differs(ranked[0], gpu, model, asked), ranked[0].source
    alike = (cell for cell in ranked if _differs(cell, gpu, model, asked) == differs and cell.source == source)
    return _named(alike), differs


def shortened(lines: Sequence[str]) -> str:
    """The first of `evidence` in short, without engine, loads and source: what was not measured before what was.

    >>> shortened(["measured nearest: gh200, vllm-0.23, apertus-8b, eagle3, K = 3, 8 in flight: TPOT +2.1 % (1 cell)"])
    'measured nearest: apertus-8b on gh200, eagle3: TPOT +2.1 %'
    """
    line = next((line for line in lines if line.startswith(UNMEASURED)), lines[0])
    head, _, cells = line.rpartition(" (")[0].partition(
        ": " if line.startswith(MEASURED) else f"{NEAREST} with another "
    )
    is_near = line.startswith(MEASURED)
    where, _, errors = (cells if is_near else cells.partition(": ")[2]).partition(" in flight: ")
    gpu, _, model, method, *_ = where.split(", ")
    errors = errors.replace(" (mean size)", "")
    return (
        f"{head}: {model} on {gpu}, {method}: {errors}"
        if is_near
        else f"{UNMEASURED} here; nearest: {model} on {gpu}: {errors}"
    )


def _loads(questions: Sequence[Asked]) -> str:
    """`no speculation, 2 in flight; draft_model, 1 and 5 in flight`: methods, each with the loads asked about."""
    loads: dict[str, set[tuple[int, int]]] = {}
    for question in questions:
        low, high = question.in_flight
        loads.setdefault(question.method, set()).add((round(low), round(high)))
    return "; ".join(
        f"{_method(method)}, {', '.join(_span(span) for span in sorted(spans))} in flight"
        for method, spans in loads.items()
    )


def _is_near(cell: Cell, asked: Asked) -> bool:
    low, high = asked.in_flight
    is_load = low / FACTOR <= cell.in_flight <= high * FACTOR
    return is_load and any(_ratio(cell.k, k) <= FACTOR for k in asked.ks)


def _ratio(a: int, b: int) -> float:
    if a == b:
        return 1.0
    return max(a, b) / min(a, b) if min(a, b) else inf


def _differs(cell: Cell, gpu: str, model: str, asked: Asked) -> list[str]:
    return [
        name
        for name, mine, theirs in (
            ("GPU", gpu, cell.gpu),
            ("model", model, cell.model),
            ("method", asked.method, cell.method),
        )
        if mine != theirs
    ]


def _distance(cell: Cell, gpu: str, model: str, asked: Asked) -> tuple[int, bool, float]:
    """Fewest differences, the method the worst of them, then the load."""
    differs = _differs(cell, gpu, model, asked)
    low, high = (max(1.0, load) for load in asked.in_flight)
    off = max(0.0, log2(low / cell.in_flight), log2(cell.in_flight / high))
    return len(differs), "method" in differs, off


def _named(found: Iterable[Cell]) -> str:
    """Of one kind and source; the first source where there are several."""
    group = list(found)
    group = [cell for cell in group if cell.source == group[0].source]
    first = group[0]
    ks, loads = sorted({cell.k for cell in group}), sorted({cell.in_flight for cell in group})
    errors = [cell.error_pct for cell in group]
    drafts = _method(first.method) if first.method == NONE else f"{first.method}, K = {_span(ks)}"
    text = (
        f"{first.gpu}, {first.engine}, {first.model}, {drafts}, {_span(loads)} in flight: "
        f"{first.metric} {_percents(errors)}"
    )
    speedups = [cell.speedup_error_pct for cell in group if cell.speedup_error_pct is not None]
    if speedups:
        text += f", speed-up {_percents(speedups)}"
    return f"{text} ({len(group)} cell{'s' * (len(group) > 1)}; {first.source})"


def _method(name: str) -> str:
    return "no speculation" if name == NONE else name


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _percents(errors: Sequence[float]) -> str:
    if len(set(errors)) == 1:
        return f"{errors[0]:+.1f} %"
    return f"{min(errors):+.1f} to {max(errors):+.1f} %"
