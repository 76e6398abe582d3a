"""Closed-loop cells: TensorRT-LLM on an H100, and vLLM with and without EAGLE-3 on an A100.

Not here: runs with timestamps (validation.accuracy.timed_runs), the words of the report (validation.accuracy.sections).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from calibrate.cli.engine_flags import engine_block
from calibrate.judge.cell import JudgedCell
from calibrate.judge.cell_table import CellTable, cells_of, parse_columns, read_cells
from calibrate.judge.cells import Setup, fit_on_cells, judge_cells, speedups
from calibrate.judge.fit_cells import Fitted, marked, parse_mark, parse_ratios
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.metrics.compared import spread
from validation.accuracy.matrix import rows_of_cells
from validation.accuracy.sections import Line, Section, number, percent, profile_text
from validation.tables import csv_rows, grouped, markdown_table, off_pct

SILICON = "aiconfigurator/silicon_llama31_8b_h100_tp1.csv"
SILICON_COLUMNS = "isl=input_len,osl=output_len,batch_size=concurrency,silicon_ttft_ms=ttft_ms,silicon_tpot_ms=tpot_ms"
STUDY = "unlicensed_local_only/a100_eagle3_study/runs_summary.csv"
STUDY_PHASES = ("phase2_results", "phase3_results")
PROMPT_TOKENS = {"gsm8k": 717, "humaneval": 206, "rag_shared_prefix": 682}
"""Prompt tokens by the study's server logs: prompt and generation throughput at concurrency 1."""

Z_95 = NormalDist().inv_cdf(0.95)


class Fit(NamedTuple):
    """Constants, the metrics that they are fitted on, and the cells (as --fit)."""

    constants: tuple[str, ...]
    metrics: tuple[str, ...]
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRun:
    """A table of cells and how it is judged; the fits follow each other."""

    title: str
    source: str
    profile: str
    setup: Setup
    fits: Sequence[Fit]
    gpu: str
    engine: str


H100 = CellRun(
    title="H100, Llama-3.1-8B, closed loop, TensorRT-LLM",
    source="ai-dynamo/aiconfigurator@095f58a51c4c (Apache-2.0), silicon_sample.csv: TensorRT-LLM 1.0.0rc3; TTFT there "
    "carries the admission of the load generator (it falls with concurrency) and is not judged",
    profile="h100-sxm/llama-3.1-8b",
    setup=Setup(
        engine=engine_block({"engine_name": "trtllm-1.0", "max_num_seqs": 512, "max_num_batched_tokens": 8192})
    ),
    fits=(Fit(("step_s",), ("tpot_ms",), ("concurrency=8",)),),
    gpu="H100",
    engine="trtllm-1.0",
)
A100 = CellRun(
    title="A100, Llama-3.1-8B fp16, vLLM 0.24, EAGLE-3",
    source="manojarulmurugan/SpecDecoding-Study-vLLM-SGLang@d96e4fb6ecef (no licence; figures quoted), phases 2 and 3, "
    "means of the repeats; prompt lengths from the server logs: "
    + ", ".join(f"{name} {tokens}" for name, tokens in PROMPT_TOKENS.items())
    + "; outputs of humaneval end by themselves, of recorded mean, their spread inferred from E2EL at concurrency 1",
    profile="a100-sxm/llama-3.1-8b+eagle3",
    setup=Setup(
        engine=engine_block({"engine_name": "vllm-0.24", "max_num_seqs": 256, "max_num_batched_tokens": 2048}),
        method=None,
    ),
    fits=(
        Fit((*parse_ratios("8,64,2048"),), ("output_throughput", "itl_p50_ms", "ttft_ms"), ("label=gsm8k,arm=none",)),
        Fit(("draft_pass_s",), ("output_throughput",), ("label=gsm8k,arm=eagle3,concurrency=1",)),
    ),
    gpu="A100",
    engine="vllm-0.24",
)
TPOT_BAR_PCT = 3.5
A100_BAR_PCT = 5.0
"""Bar for each arm, mean and largest, and for the largest speed-up."""
GOODPUT_BAR_PCT, SPEEDUP_BAR_PCT = 6.0, 3.0
"""Bars for the mean over all cells and over all speed-ups."""


class Outcome(NamedTuple):
    judged: list[JudgedCell]
    profile: Profile
    about: list[str]


def run_cells(run: CellRun, table: CellTable) -> Outcome:
    """Fit, then judge all cells with what was fitted."""
    profile = load(run.profile)
    is_fit = [False] * len(table.cells)
    fitted_texts = []
    for fit in run.fits:
        marks = marked(table.cells, [parse_mark(text) for text in fit.marks])
        is_fit = [a or b for a, b in zip(is_fit, marks, strict=True)]
        fitted = fit_on_cells(table, marks, profile, run.setup, fit.constants, fit.metrics)
        profile = fitted.profile
        fitted_texts.append(_fit_text(fit, fitted, sum(marks)))
    judged = judge_cells(table, is_fit, profile, run.setup)
    settings = ", ".join(f"{name} {value}" for name, value in run.setup.engine.items())
    engine = f"engine: {settings}; {run.setup.waves} requests per place in flight where the table has no number"
    return Outcome(judged, profile, [run.source, profile_text(profile), *fitted_texts, engine])


def _fit_text(fit: Fit, fitted: Fitted, num_cells: int) -> str:
    cells = " and ".join(f"`{mark}`" for mark in fit.marks)
    number_of = "1 cell" if num_cells == 1 else f"{num_cells} cells"
    left = f"; {fitted.error_pct:.2f} % left on them" if fitted.half_widths_s else ""
    bound = "; at its bound: the simulation is too slow there without it" if fitted.is_at_bound else ""
    return f"fitted: {fitted} on the mean {' and '.join(fit.metrics)} of {number_of}, {cells}{left}{bound}"


def h100_section(data: Path, peer: Path | None = None) -> Section:
    table = read_cells(data / SILICON, parse_columns(SILICON_COLUMNS))
    peers = _peer_errors(table, peer)
    outcome = run_cells(H100, table)
    errors = judged_errors(outcome.judged, "tpot_ms")
    lines = error_lines(f"TPOT, {len(errors)} cells", errors, TPOT_BAR_PCT)
    tail = cells_table(outcome.judged, {"tpot_ms": "TPOT (ms)", "ttft_ms": "TTFT (ms)"})
    rows = rows_of_cells(
        outcome.judged,
        gpu=H100.gpu,
        engine=H100.engine,
        model="llama-3.1-8b",
        method="none",
        peer="aiconfigurator 0.12" if peers else "",
        peer_errors_pct=peers,
    )
    return Section(title=H100.title, about=outcome.about, lines=lines, tail=tail, rows=rows)


def _peer_errors(table: CellTable, path: Path | None) -> dict[int, dict[str, float | None]]:
    """Errors of what a peer predicts for the cell of the same id, where it does, by line of `table`."""
    if path is None:
        return {}
    predicted = {row["id"]: row for row in csv_rows(path)}
    found: dict[int, dict[str, float | None]] = {}
    for cell in table.cells:
        row = predicted.get(cell.texts["id"], {})
        found[cell.line] = {
            column: off_pct(float(row[theirs]), cell.measured[ours])
            for column, ours, theirs in (("TPOT", "tpot_ms", "aic_tpot_ms"), ("TTFT", "ttft_ms", "aic_ttft_ms"))
            if row.get(theirs)
        }
    return found


def a100_section(data: Path) -> Section:
    outcome = run_cells(A100, study_table(data))
    lines: list[Line] = []
    for (label, arm), own in grouped(outcome.judged, lambda each: (each.cell.label, each.cell.arm)).items():
        errors = judged_errors(own, "output_throughput")
        if errors:
            lines += error_lines(f"goodput, {label} {arm}, {len(errors)} cells", errors, A100_BAR_PCT, A100_BAR_PCT)
    everything = judged_errors(outcome.judged, "output_throughput")
    lines += error_lines(f"goodput, {len(everything)} cells", everything, GOODPUT_BAR_PCT)
    pairs = speedups(outcome.judged)
    gains = [pair["error_pct"] for pair in pairs if pair["role"] == "judged"]
    lines += error_lines(f"speed-up, {len(gains)} pairs", gains, SPEEDUP_BAR_PCT, A100_BAR_PCT)
    metrics = {"output_throughput": "goodput (tok/s)", "itl_ms": "ITL (ms)", "ttft_ms": "TTFT (ms)"}
    tail = cells_table(outcome.judged, metrics) + "\n" + pairs_table(pairs)
    cells = rows_of_cells(outcome.judged, gpu=A100.gpu, engine=A100.engine, model="llama-3.1-8b", method="eagle3")
    return Section(title=A100.title, about=outcome.about, lines=lines, tail=tail, rows=cells)


def study_table(data: Path) -> CellTable:
    """The study's cells."""
    return cells_of("a100.csv", study_cells(csv_rows(data / STUDY)))


def study_cells(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The study's runs of Llama-3.1-8B-Instruct in fp16, both phases, as cells: means over the repeats of a point.

    Raises ValueError where repeats differ in what must be the same.
    """
    ours = [
        row
        for row in rows
        if row["phase"] in STUDY_PHASES
        and row["model"].endswith("Llama-3.1-8B-Instruct")
        and (row["w"], row["kv"]) == ("fp16", "fp16")
        and row["spec"] in ("none", "eagle3")
    ]
    points = grouped(ours, lambda row: (row["wl"], row["spec"], int(row["conc"])))
    if not points:
        raise ValueError(f"{STUDY}: no run of Llama-3.1-8B-Instruct in fp16 in {' and '.join(STUDY_PHASES)}")
    order = sorted(points, key=lambda point: (point[0], point[1] != "none", point[2]))
    spreads = {point[0]: _output_std(points[point]) for point in order if point[1:] == ("none", 1)}
    return [_study_cell(*point, points[point], spreads.get(point[0], 0.0)) for point in order]


def _output_std(repeats: Sequence[Mapping[str, str]]) -> float:
    """Standard deviation of the output tokens, inferred from E2EL at concurrency 1: a token takes one ITL there.

    The 95th percentile is Z_95 standard deviations above the median. Outputs that all have the most tokens are fixed.
    """
    if all(float(row["tot_out"]) == float(row["nreq"]) * _max_output_tokens(row) for row in repeats):
        return 0.0
    return fmean((float(row["e2e_p95"]) - float(row["e2e_p50"])) / float(row["itl_mean"]) / Z_95 for row in repeats)


def _max_output_tokens(row: Mapping[str, str]) -> int:
    return int(json.loads(row["wlp"])["max_new_tokens"])


def _study_cell(
    workload: str, spec: str, concurrency: int, repeats: Sequence[Mapping[str, str]], output_std: float
) -> dict[str, Any]:
    def mean(name: str) -> float:
        return fmean(float(row[name]) for row in repeats)

    num_prompts = mean("nreq")
    draft_tokens = mean("k")
    for name, value in (("nreq", num_prompts), ("k", draft_tokens)):
        if not all(isclose(float(row[name]), value) for row in repeats):
            raise ValueError(f"{STUDY}: repeats of {workload} {spec} c={concurrency} differ in {name}")
    return {
        "label": workload,
        "arm": spec,
        "concurrency": concurrency,
        "input_len": PROMPT_TOKENS[workload],
        "output_len": round(mean("tot_out") / num_prompts),
        "output_len_std": output_std or "",
        "output_len_max": _max_output_tokens(repeats[0]),
        "num_prompts": int(num_prompts),
        "num_speculative_tokens": int(draft_tokens),
        "acceptance_length": mean("tau") if draft_tokens else "",
        "output_throughput": mean("goodput"),
        "ttft_ms": mean("ttft_mean"),
        "itl_ms": mean("itl_mean"),
        "itl_p50_ms": mean("itl_p50"),
        "e2el_ms": mean("e2e_mean"),
    }


def judged_errors(judged: Sequence[JudgedCell], metric: str) -> list[float]:
    """Errors of the cells that judge, percent."""
    values = [each.metrics[metric]["error_pct"] for each in judged if not each.is_fit and metric in each.metrics]
    return [value for value in values if value is not None]


def error_lines(
    what: str, errors: Sequence[float], mean_bar: float | None = None, largest_bar: float | None = None
) -> list[Line]:
    """The mean size of the errors, the largest one, and their mean with its sign."""
    found = spread(errors)
    mean_size, largest = found["mean_absolute_error_pct"], found["max_absolute_error_pct"]
    return [
        Line(what=f"{what}: mean size of the error", error_pct=mean_size, bar_pct=mean_bar, is_size=True),
        Line(what=f"{what}: largest size", error_pct=largest, bar_pct=largest_bar, is_size=True),
        Line(what=f"{what}: mean error", error_pct=found["mean_error_pct"]),
    ]


def cells_table(judged: Sequence[JudgedCell], metrics: Mapping[str, str]) -> str:
    """One row per cell; three columns for each of `metrics`, column -> title."""
    headings = [f"{title}{part}" for title in metrics.values() for part in (", real", ", lanesim", ", error")]
    rows = [
        [each.cell.name, "fit" if each.is_fit else "judged"]
        + [text for metric in metrics for text in _texts(each.metrics.get(metric))]
        for each in judged
    ]
    return markdown_table(["cell", "role", *headings], rows, left=2)


def _texts(values: Mapping[str, float | None] | None) -> list[str]:
    if values is None:
        return ["–"] * 3
    return [number(values["real"]), number(values["simulated"]), percent(values["error_pct"])]


def pairs_table(pairs: Sequence[Mapping[str, Any]]) -> str:
    rows = [[f"{pair['name']} speed-up", pair["role"], *_texts(pair)] for pair in pairs]
    return markdown_table(["pair", "role", "real", "lanesim", "error"], rows, left=2)
