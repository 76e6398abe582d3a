"""Closed-loop cells simulated and compared: error per cell and metric, over the judged ones, of speed-ups; a figure.

A cell is a closed loop: all requests at once, at most `concurrency` in flight, one let in as one finishes. Where the
table does not say how many, WAVES x concurrency are served, so that filling and draining weigh about a tenth each; of a
list of requests the least number of whole passes through it that are as many.
`continuous` serves cells that draft, `autoregressive` the others. Not here: the table (calibrate.judge.cell_table),
the fit (calibrate.judge.fit_cells).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import ceil
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, TypedDict

import msgspec
import numpy as np

from calibrate.judge.cell import FITTED, MEASURED, Cell, JudgedCell
from calibrate.judge.cell_table import LENGTHS, CellTable
from calibrate.judge.fit_cells import RATIO, Fitted, Undetermined, fit_constant, fit_constants
from sim.costs.engine_costs import engine_of, with_engine
from sim.costs.profile import SERVED, Profile
from sim.files.json_values import Json
from sim.files.write import write_figure
from sim.interface.request import Request
from sim.metrics.compared import THROUGHPUT, spread
from sim.metrics.summary import summarise
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.run.simulate import simulate
from sim.workload.generate import num_requests

CELLS_SCHEMA = 1
FIGURE = "validation-cells.png"
WAVES = 10
CELL_INCHES, MAX_INCHES = 0.28, 24.0
SHOWN = (
    "line", "label", "arm", "concurrency", "input_len", "output_len", "output_len_std", "output_len_max", "num_prompts",
    "num_speculative_tokens", "acceptance",
)  # fmt: skip
"""Fields of a cell that its JSON shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What holds for all cells of a table."""

    engine: Mapping[str, Json]
    """The scenario's `engine` block; a cell's own columns come first."""
    waves: int = WAVES
    """Requests per place in flight, where the table has no num_prompts."""
    warmup_waves: int = 0
    """First requests per place that are left out of the metrics."""
    method: str | None = None
    requests: Sequence[tuple[int, int]] = ()
    """Prompt and output tokens of the requests that every cell serves, in order and over again; none: as cells say."""
    acceptance_spread: float | None = None
    """How requests differ in draws, for cells whose acceptance does not say (sim.acceptance.spread)."""
    seed: int = 0

    @property
    def engine_name(self) -> str | None:
        """None: the profile's own."""
        name = self.engine.get("name")
        return None if name is None else str(name)


class Speedup(TypedDict):
    """A drafting cell's output throughput over that of its partners, as JSON has it."""

    name: str
    line: int
    partners: list[int]
    """Their lines."""
    role: str
    """fit or judged."""
    real: float
    simulated: float
    error_pct: float


def scenario_of(cell: Cell, profile: Profile, setup: Setup) -> Scenario:
    """The closed loop of `cell`. Raises ValueError."""
    num_prompts = cell.num_prompts or _whole_passes(setup.waves * cell.concurrency, len(setup.requests))
    limits = {name: getattr(cell, name) for name in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks")}
    lengths = {"input_len": cell.input_len, "output_len": cell.output_len}
    if setup.requests:
        means = np.mean(setup.requests, axis=0)
        lengths = {name: round(float(mean)) for name, mean in zip(lengths, means, strict=True)}
    speculation: dict[str, Json] = {"num_speculative_tokens": cell.num_speculative_tokens}
    if cell.num_speculative_tokens:
        speculation["acceptance"] = _with_spread(str(cell.acceptance), setup.acceptance_spread)
        if setup.method is not None:
            speculation["method"] = setup.method
    return parse_scenario(
        {
            "profile": profile.name,
            "policy": "continuous" if cell.num_speculative_tokens else "autoregressive",
            "engine": {**setup.engine, **{name: value for name, value in limits.items() if value is not None}},
            "workload": {
                "num_prompts": num_prompts,
                "request_rate": "inf",
                "max_concurrency": cell.concurrency,
                **lengths,
                "num_warmups": setup.warmup_waves * cell.concurrency,
            },
            "speculation": speculation,
            "seed": setup.seed,
        }
    )


def simulate_cell(cell: Cell, profile: Profile, setup: Setup) -> dict[str, float]:
    """The metrics of the simulated cell that are defined (sim.metrics.summary). Raises ValueError."""
    scenario = scenario_of(cell, profile, setup)
    requests = _requests(cell, num_requests(scenario.workload), scenario.seed, setup)
    record = simulate(resolve_all(scenario, profile)[0], scenario.seed, requests=requests)
    run = summarise(record, num_warmups=scenario.workload.num_warmups)
    return {name: value for name, value in run.items() if isinstance(value, int | float)}


def _whole_passes(num_prompts: int, per_pass: int) -> int:
    return ceil(num_prompts / per_pass) * per_pass if per_pass else num_prompts


def _with_spread(acceptance: str, spread: float | None) -> str:
    return acceptance if spread is None or "~" in acceptance else f"{acceptance}~{spread!r}"


def _requests(cell: Cell, num_prompts: int, seed: int, setup: Setup) -> list[Request] | None:
    """The list's, over and over, or those whose outputs vary; None where all are alike."""
    if setup.requests:
        lengths = islice(cycle(setup.requests), num_prompts)
        return [Request(index, str(index), 0.0, *tokens) for index, tokens in enumerate(lengths)]
    return varied_requests(cell, num_prompts, seed) if cell.output_len_std else None


def varied_requests(cell: Cell, num_prompts: int, seed: int) -> list[Request]:
    """Requests whose outputs vary: evenly spaced quantiles of a normal distribution, in an order drawn from `seed`.

    They are cut at output_len_max, and as far below the mean, so that the mean stays. Outputs of one length keep a
    closed loop in step, wave after wave; real outputs that end by themselves do not.
    """
    assert cell.input_len is not None
    assert cell.output_len is not None
    mean, most = cell.output_len, cell.output_len_max or 2 * cell.output_len - 1
    reach = min(most - mean, mean - 1)
    normal = NormalDist(0.0, cell.output_len_std)
    offsets = [normal.inv_cdf((place + 0.5) / num_prompts) for place in range(num_prompts)]
    lengths = [mean + round(min(reach, max(-reach, offset))) for offset in offsets]
    order = np.random.default_rng(seed).permutation(num_prompts).tolist()
    return [Request(index, str(index), 0.0, cell.input_len, lengths[place]) for index, place in enumerate(order)]


def judge_cells(
    table: CellTable,
    is_fit: Sequence[bool],
    profile: Profile,
    setup: Setup,
    on_cell: Callable[[int, int], None] = lambda done, total: None,
) -> list[JudgedCell]:
    """Every cell beside its simulation; `on_cell` hears how many of how many are done.

    Raises ValueError naming the line of a cell that cannot run.
    """
    judged = []
    for cell, fitted_on in zip(table.cells, is_fit, strict=True):
        run = _simulated(table, cell, profile, setup)
        simulated = {name: run.get(MEASURED[name]) for name in cell.measured}
        judged.append(JudgedCell.beside(msgspec.structs.replace(cell, role=FITTED) if fitted_on else cell, simulated))
        on_cell(len(judged), len(table.cells))
    return judged


def fit_on_cells(
    table: CellTable,
    is_fit: Sequence[bool],
    profile: Profile,
    setup: Setup,
    constants: Sequence[str],
    metrics: Sequence[str],
) -> Fitted:
    """Constants of the engine fitted on the marked cells: one time on one metric, whose mean signed error becomes 0;
    several, or ratios, by least squares over `metrics`, each cell and metric an equal share.

    The profile carries the others of that engine from then on, and says what was fitted on what. Raises ValueError
    where a marked cell lacks a metric, and where the cells cannot tell the constants.
    """
    profile = with_engine(profile, engine_of(setup.engine_name, profile))
    cells = _marked_cells(table, is_fit, metrics)

    def ratios(candidate: Profile) -> list[float]:
        return [
            found[MEASURED[metric]] / cell.measured[metric]
            for cell in cells
            for found in [_simulated(table, cell, candidate, setup)]
            for metric in metrics
        ]

    has_ratios = any(name.startswith(RATIO) for name in constants)
    if len(constants) > 1 or has_ratios:
        try:
            found = fit_constants(profile, constants, ratios)
        except Undetermined as error:
            raise ValueError(f"--fit: {error}; mark other cells, too, or leave it out") from None
    else:
        sign = -1.0 if metrics[0] == THROUGHPUT else 1.0
        found = fit_constant(profile, constants[0], lambda candidate: sign * 100.0 * (fmean(ratios(candidate)) - 1.0))
    ids = [cell.texts["id"] for cell in cells if "id" in cell.texts]
    source = (
        f"{found} fitted by lanesim on the mean {' and '.join(metrics)} of {len(cells)} closed-loop "
        f"cell{'s' if len(cells) > 1 else ''} of {Path(table.path).name}{': ' if ids else ''}{', '.join(ids)}"
    )
    host = msgspec.structs.replace(found.profile.host, source=f"{found.profile.host.source}; {source}")
    fitted = msgspec.structs.replace(found.profile, host=host)
    if has_ratios:
        fitted = msgspec.structs.replace(fitted, conditions=SERVED, source=f"layers served; the rest: {fitted.source}")
    return replace(found, profile=fitted)


def _marked_cells(table: CellTable, is_fit: Sequence[bool], metrics: Sequence[str]) -> list[Cell]:
    cells = [cell for cell, is_marked in zip(table.cells, is_fit, strict=True) if is_marked]
    for cell in cells:
        for metric in metrics:
            if metric not in cell.measured:
                raise ValueError(f"{table.where(cell)}: marked by --fit, and has no {metric} (--fit-metric)")
    return cells


def _simulated(table: CellTable, cell: Cell, profile: Profile, setup: Setup) -> dict[str, float]:
    try:
        return simulate_cell(cell, profile, setup)
    except ValueError as error:
        raise ValueError(f"{table.where(cell)}: {error}") from None


def summary(judged: Sequence[JudgedCell]) -> dict[str, dict[str, float | int | None]]:
    """Each metric over the judged cells: their number, and the errors' mean size, mean and largest size, percent."""
    found = {}
    for metric in MEASURED:
        if not any(metric in each.metrics for each in judged):
            continue
        own = [each.metrics[metric] for each in judged if not each.is_fit and metric in each.metrics]
        found[metric] = spread([error for beside in own if (error := beside["error_pct"]) is not None])
    return found


def speedups(judged: Sequence[JudgedCell]) -> list[Speedup]:
    """Output throughput of every drafting cell over that of its partner, which drafts nothing.

    Partners have the same label, up to its last "/" where there is no arm, and the same concurrency and lengths; of
    several the mean counts. A pair judges nothing where the constant was fitted on all of its cells.
    """
    references: dict[PairKey, list[JudgedCell]] = {}
    with_throughput = [each for each in judged if THROUGHPUT in each.metrics]
    for each in with_throughput:
        if each.cell.num_speculative_tokens == 0:
            references.setdefault(_pair_key(each.cell), []).append(each)
    pairs = []
    for each in with_throughput:
        partners = references.get(_pair_key(each.cell), [])
        if each.cell.num_speculative_tokens == 0 or not partners:
            continue
        real, simulated = (
            _throughput(each, side) / (sum(_throughput(one, side) for one in partners) / len(partners))
            for side in ("real", "simulated")
        )
        pairs.append(
            Speedup(
                name=each.cell.name,
                line=each.cell.line,
                partners=[partner.cell.line for partner in partners],
                role="fit" if all(one.is_fit for one in (each, *partners)) else "judged",
                real=real,
                simulated=simulated,
                error_pct=100.0 * (simulated - real) / real,
            )
        )
    return pairs


PairKey = tuple[str, int, int | None, int | None]
"""Label, concurrency and lengths."""


def _pair_key(cell: Cell) -> PairKey:
    label = cell.label if cell.arm else cell.label.rpartition("/")[0] or cell.label
    return label, cell.concurrency, cell.input_len, cell.output_len


def _throughput(each: JudgedCell, side: str) -> float:
    value = each.metrics[THROUGHPUT][side]
    assert value is not None
    return value


def result_of(
    table: CellTable,
    judged: Sequence[JudgedCell],
    profile: Profile,
    setup: Setup,
    fitted: Fitted | None,
    metrics: Sequence[str],
) -> dict[str, Any]:
    """What `validate cells --json` holds; `fitted` on these metrics of the cells that are marked."""
    pairs = speedups(judged)
    notes = [f"columns that mean nothing here: {', '.join(table.unused)}"] if table.unused else []
    drafting = [each for each in judged if each.cell.num_speculative_tokens and THROUGHPUT in each.metrics]
    if setup.requests:
        notes.append(f"{len(setup.requests)} requests a pass, in whole passes unless the table has num_prompts")
        unread = [name for name in (*LENGTHS, "output_len_std") if any(each.cell.texts.get(name) for each in judged)]
        if unread:
            notes.append(f"not read, since the requests are listed: {', '.join(unread)}")
    if 0 < len(drafting) < len(judged) and len(pairs) < len(drafting):
        notes.append(
            f"{len(drafting) - len(pairs)} of {len(drafting)} drafting cells have no partner without drafts of "
            "the same label, concurrency and lengths: no speed-up of theirs"
        )
    return {
        "schema": CELLS_SCHEMA,
        "profile": {"name": profile.name, "source": profile.source},
        "engine": {**setup.engine, "name": engine_of(setup.engine_name, profile).name},
        "waves": setup.waves,
        "warmup_waves": setup.warmup_waves,
        "requests_per_pass": len(setup.requests) or None,
        "acceptance_spread": setup.acceptance_spread,
        "seed": setup.seed,
        "fit": None if fitted is None else _plain_fit(judged, fitted, metrics),
        "cells": [_plain(each, profile, setup) for each in judged],
        "judged": summary(judged),
        "speedups": pairs,
        "speedup": spread([pair["error_pct"] for pair in pairs if pair["role"] == "judged"]),
        "notes": notes,
    }


def _plain_fit(judged: Sequence[JudgedCell], fitted: Fitted, metrics: Sequence[str]) -> dict[str, Json]:
    common: dict[str, Json] = {
        "metric": ",".join(metrics),
        "error_pct": fitted.error_pct,
        "lines": [each.cell.line for each in judged if each.is_fit],
    }
    constants: list[dict[str, Json]] = []
    for name, value_s in fitted.values_s.items():
        is_ratio = name.startswith(RATIO)
        constant: dict[str, Json] = {
            "constant": name if is_ratio else f"host.{name}",
            "value" if is_ratio else "value_s": value_s,
        }
        if not fitted.half_widths_s:
            return {**constant, **common, "is_at_bound": fitted.is_at_bound}
        width = {"half_width" if is_ratio else "half_width_s": fitted.half_widths_s[name]}
        constants.append({**constant, **width, "is_told": fitted.told[name]})
    return {"constants": constants, **common}


def _plain(each: JudgedCell, profile: Profile, setup: Setup) -> dict[str, Json]:
    cell = each.cell
    scenario = scenario_of(cell, profile, setup)
    return {
        **{name: getattr(cell, name) for name in SHOWN},
        "num_prompts": scenario.workload.num_prompts,
        "policy": scenario.policy[0],
        "role": "fit" if each.is_fit else "judged",
        "metrics": dict(each.metrics),
    }


def draw_cells(directory: Path, judged: Sequence[JudgedCell], title: str) -> None:
    """validation-cells.png, the error by cell, one panel per metric, cells of the fit hollow. Raises ValueError without
    the plotting libraries."""
    from sim.report.pictures.panels import canvas, headline, panel, save_and_close, set_theme

    set_theme()
    metrics = [name for name in MEASURED if any(name in each.metrics for each in judged)]
    width = max(6.0, min(MAX_INCHES, 3.0 + CELL_INCHES * len(judged)))
    figure, axes = canvas(len(metrics), 1, width=width, height=2.0, shared="x")
    for (axis,), metric in zip(axes, metrics, strict=True):
        for is_fit, face in ((False, "#4c72b0"), (True, "white")):
            points = [
                (place, each.metrics[metric]["error_pct"] or 0.0)
                for place, each in enumerate(judged)
                if each.is_fit is is_fit and metric in each.metrics
            ]
            label = "fitted on" if is_fit else "judged"
            axis.bar([x for x, _ in points], [y for _, y in points], 0.8, color=face, edgecolor="#4c72b0", label=label)
        axis.axhline(0.0, color="black", linewidth=0.8)
        panel(axis, y=f"{metric}\nerror, % of real")
    axes[0][0].legend(frameon=False, ncols=2)
    axes[-1][0].set_xticks(range(len(judged)), [each.cell.name for each in judged], rotation=90, fontsize=6)
    headline(figure, title)
    write_figure(directory / FIGURE, partial(save_and_close, figure))
