"""Constants of engines that several sources went into, taken anew without each of them: `python -m validation left_out
DATA [--out TABLE.csv]`.

A pooled constant is the mean over its sources (its `source` in sim/engines says of what), so that leaving one out is
the mean of the others. The source that was left out then judges: its cells, its engine, that one constant
replaced by the pooled one and by the one without it. DATA as in `make accuracy-public`. Not here: constants of one
source (docs/leaderboard.md names them), the page (validation.pages.leaderboard).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from sim.costs.engine_costs import engine_of, load_engine, with_engine
from sim.costs.profile import Profile
from validation.judge.sections import judge_run
from validation.judge.specs import specs
from validation.tables import mean_size, write_csv

TABLE = Path(__file__).parents[1] / "docs/validation/left-out.csv"
ELSEWHERE = "a GPU that no engine names"


class PooledSource(NamedTuple):
    """Cells that went into a constant: those of a run of a section of sections.yaml."""

    section: str
    run: int
    engine: str
    metric: str
    measure: str
    """The metric in words."""
    shipped: tuple[str, int] | None = None
    """GPU and tensor-parallel degree of the shipped engine, instead of what the profile has of it."""


MID_2025 = "H100, Llama-3.1-8B, vLLM of mid-2025"
H100, A100 = "H100, Llama-3.1-8B, closed loop, TensorRT-LLM", "A100, Llama-3.1-8B fp16, vLLM 0.24, EAGLE-3"
RTX_PRO, RTX_4090 = "RTX PRO 6000, Llama-3.1-8B, vLLM 0.19", "RTX 4090, Llama-3.1-8B, vLLM 0.19"
SOURCES = {
    "SpecDecode-Bench, vLLM of 2025": PooledSource(MID_2025, 1, "vllm-0.9", "tpot_ms", "step"),
    "vLLM 0.12, Qwen3-32B, TP 2": PooledSource(
        "H100, Qwen3-32B, vLLM 0.12", 0, "vllm-0.12", "tpot_ms", "TPOT", shipped=("h100-sxm", 2)
    ),
    "TensorRT-LLM 1.0, Llama-3.1-8B": PooledSource(H100, 0, "trtllm-1.0", "tpot_ms", "TPOT"),
    "vllm#20780, vLLM of mid-2025": PooledSource(MID_2025, 0, "vllm-0.9", "tpot_ms", "TPOT at k = 2"),
    "vLLM 0.24, A100, EAGLE-3": PooledSource(A100, 0, "vllm-0.24", "output_throughput", "tokens/s"),
    RTX_PRO: PooledSource(RTX_PRO, 0, "vllm-0.19", "tpot_ms", "mean TPOT"),
    RTX_4090: PooledSource(RTX_4090, 0, "vllm-0.19", "tpot_ms", "mean TPOT"),
}
STEP_S = {"SpecDecode-Bench, vLLM of 2025": 1.207e-3, "vLLM 0.12, Qwen3-32B, TP 2": 2.19e-3}
POOLED = (
    ("step_s", "vllm-0.24", "vllm-0.12 to 0.24, elsewhere", STEP_S),
    (
        "step_s", "trtllm-1.0", "sglang-0.5 and trtllm-1.0, elsewhere",
        {**STEP_S, "TensorRT-LLM 1.0, Llama-3.1-8B": 0.8812e-3},
    ),
    (
        "draft_pass_s", "trtllm-1.0", "vllm-0.12, trtllm, sglang-0.5, elsewhere",
        {"vllm#20780, vLLM of mid-2025": 0.68e-3, "vLLM 0.24, A100, EAGLE-3": 0.0},
    ),
    ("gap_s", "vllm-0.19", "vllm-0.19, elsewhere", {RTX_PRO: 1.736e-3, RTX_4090: 0.0}),
)  # fmt: skip
"""Constant, a file of sim/engines that has its pooled value, all of those in words, each source's value in seconds."""

Errors = Callable[[str, float], list[float]]
"""Errors of a source's cells in percent, with a value of the constant, seconds, instead of its engine's."""


def left_out(
    constant: str,
    engines: str,
    pooled_s: float,
    values_s: Mapping[str, float],
    measures: Mapping[str, str],
    errors: Errors,
) -> Iterator[dict[str, Any]]:
    """A line of the table for each source in turn: times in milliseconds, the errors' mean size in percent."""
    for source, value_s in values_s.items():
        without_s = fmean(other_s for other, other_s in values_s.items() if other != source)
        with_pooled, without = (errors(source, tried_s) for tried_s in (pooled_s, without_s))
        times_s = {"own_ms": value_s, "pooled_ms": pooled_s, "without_ms": without_s}
        yield {
            "constant": constant,
            "engines": engines,
            "source": source,
            **{name: round(1e3 * time_s, 4) for name, time_s in times_s.items()},
            "metric": measures[source],
            "cells": len(with_pooled),
            "pooled_error_pct": round(mean_size(with_pooled) or 0.0, 1),
            "without_error_pct": round(mean_size(without) or 0.0, 1),
        }


def errors_of(data: Path, constant: str) -> Errors:
    """Errors on the cells of SOURCES; of throughput and draft_pass_s on those that draft, since the others do not see
    the constant."""
    runs = {spec.title: spec.runs for spec in specs()}

    def errors(source: str, value_s: float) -> list[float]:
        section, run, engine, metric, _, shipped = SOURCES[source]

        def changed(profile: Profile) -> Profile:
            costs = load_engine(engine, *shipped) if shipped else engine_of(engine, profile)
            return with_engine(profile, msgspec.structs.replace(costs, **{constant: value_s}))

        judged, _ = judge_run(runs[section][run], data, changed)
        seen = [each for each in judged if each.cell.num_speculative_tokens or constant != "draft_pass_s"]
        return [each.error_pct(metric) or 0.0 for each in seen]

    return errors


def lines_of(data: Path) -> Iterator[dict[str, Any]]:
    measures = {name: source.measure for name, source in SOURCES.items()}
    for constant, engine, engines, values_s in POOLED:
        pooled_s = getattr(load_engine(engine, ELSEWHERE), constant)
        yield from left_out(constant, engines, pooled_s, values_s, measures, errors_of(data, constant))


def main(data: Path, out: Path = TABLE) -> None:
    warnings.simplefilter("ignore")
    lines: list[dict[str, Any]] = []
    for line in lines_of(data):
        lines.append(line)
        print(*line.values(), sep=", ", file=sys.stderr)
    write_csv(out, list(lines[0]), (line.values() for line in lines))
