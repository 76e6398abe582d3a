"""Constants of engines that several sources went into, taken anew without each of them: `python -m validation left_out
DATA [--out TABLE.csv]`.

A pooled constant is a mean or a median (its `source` in sim/engines says of what), so that leaving a source out is the
same mean of the others. The source that was left out then judges: its own cells, its own engine, that one constant
replaced by the pooled one and by the one without it. DATA as in `make accuracy-public`. Not here: constants of one
source (docs/leaderboard.md names them), the page (validation.pages.leaderboard).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from calibrate.judge.cell import Cell
from sim.costs.engine_costs import engine_of, load_engine, with_engine
from sim.costs.profile import Profile
from validation.accuracy.sections import judge_run
from validation.accuracy.specs import RunSpec, specs
from validation.silicon.labels import drafting, is_fitted
from validation.silicon.served_cells import RECIPE, cell_of, engine_name, means, profile_of, raw_scenario
from validation.silicon.served_cells import read_cells as read_served
from validation.tables import grouped, off_pct, write_csv

TABLE = Path(__file__).parents[2] / "docs/validation/left-out.csv"
ELSEWHERE = "a GPU that no engine names"
SERVED = "aiconfigurator/silicon_visible.csv"
MID_2025, TRTLLM = "H100, Llama-3.1-8B, vLLM of mid-2025", "H100, Llama-3.1-8B, closed loop, TensorRT-LLM"
QWEN, STUDY = "H100, Qwen3-32B, vLLM 0.12", "A100, Llama-3.1-8B fp16, vLLM 0.24, EAGLE-3"
TIMED = {"RTX PRO 6000, Llama-3.1-8B, vLLM 0.19": 1.736e-3, "RTX 4090, Llama-3.1-8B, vLLM 0.19": 0.0}
"""Titles of sections, the timed ones with the gap_s of each."""
Change = Callable[[float], Callable[[Profile], Profile]]
"""Value of the constant, seconds -> change of a profile."""
Errors = Callable[[float], list[float]]
"""Value of the constant, seconds -> errors on all cells of a source, percent."""


class Source(NamedTuple):
    """What went into a constant."""

    name: str
    value_s: float
    metric: str
    errors_pct: Errors
    """Errors on its cells with a value of the constant in the place of its engine's own."""


class Constant(NamedTuple):
    name: str
    engines: str
    """Files of sim/engines that have the pooled value, and where."""
    pooled_s: float
    pool: Callable[[Sequence[float]], float]
    sources: tuple[Source, ...]


class LeftOut(NamedTuple):
    """A line of the table; times in milliseconds, errors the mean size in percent."""

    constant: str
    engines: str
    source: str
    own_ms: float
    pooled_ms: float
    without_ms: float
    metric: str
    cells: int
    pooled_error_pct: float
    without_error_pct: float


def left_out(constant: Constant) -> list[LeftOut]:
    """Each source in turn."""
    found = []
    for place, source in enumerate(constant.sources):
        others = [other.value_s for other in constant.sources[:place] + constant.sources[place + 1 :]]
        without_s = constant.pool(others)
        pooled, without = (source.errors_pct(value_s) for value_s in (constant.pooled_s, without_s))
        found.append(
            LeftOut(
                constant=constant.name,
                engines=constant.engines,
                source=source.name,
                own_ms=_ms(source.value_s),
                pooled_ms=_ms(constant.pooled_s),
                without_ms=_ms(without_s),
                metric=source.metric,
                cells=len(pooled),
                pooled_error_pct=_size(pooled),
                without_error_pct=_size(without),
            )
        )
    return found


def _ms(value_s: float) -> float:
    return round(1e3 * value_s, 4)


def _size(errors_pct: Sequence[float]) -> float:
    return round(fmean(map(abs, errors_pct)), 1)


def constants(data: Path) -> list[Constant]:
    vllm, trtllm, older = (load_engine(name, ELSEWHERE) for name in ("vllm-0.24", "trtllm-1.0", "vllm-0.19"))
    runs = {spec.title: spec.runs for spec in specs()}
    (issue_run, line_run), (llama_run,) = (runs[title] for title in (MID_2025, TRTLLM))
    mid_2025 = partial(engine_constant, "vllm-0.9")

    def source(name: str, value_s: float, told: str, run: RunSpec, metric: str, change: Change) -> Source:
        return Source(name, value_s, told, lambda tried_s: run_errors(run, data, metric, change(tried_s)))

    line = source("SpecDecode-Bench, vLLM of 2025", 1.207e-3, "step", line_run, "tpot_ms", partial(mid_2025, "step_s"))
    qwen = source("vLLM 0.12, Qwen3-32B, TP 2", 2.19e-3, "TPOT", runs[QWEN][0], "tpot_ms", shipped_step)
    llama = source(
        "TensorRT-LLM 1.0, Llama-3.1-8B", 0.8812e-3, "TPOT", llama_run, "tpot_ms",
        partial(engine_constant, "trtllm-1.0", "step_s"),
    )  # fmt: skip
    drafting_issue = msgspec.structs.replace(issue_run, cells=issue_run.cells[1:])
    issue = source(
        "vllm#20780, vLLM of mid-2025", 0.68e-3, "TPOT at k = 2", drafting_issue, "tpot_ms",
        partial(mid_2025, "draft_pass_s"),
    )  # fmt: skip
    study = source(
        "vLLM 0.24, A100, EAGLE-3", 0.0, "tokens/s", runs[STUDY][0], "output_throughput",
        partial(engine_constant, "vllm-0.24", "draft_pass_s"),
    )  # fmt: skip
    timed = [
        source(title, value_s, "mean TPOT", runs[title][0], "tpot_ms", partial(engine_constant, "vllm-0.19", "gap_s"))
        for title, value_s in TIMED.items()
    ]
    return [
        Constant("step_s", "vllm-0.12 to 0.24, elsewhere", vllm.step_s, fmean, (line, qwen)),
        Constant(
            "step_s",
            "sglang-0.5 and trtllm-1.0, elsewhere",
            trtllm.step_s,
            fmean,
            (line, qwen, llama),
        ),
        Constant(
            "draft_pass_s", "vllm-0.12, trtllm, sglang-0.5, elsewhere", trtllm.draft_pass_s, fmean, (issue, study)
        ),
        Constant("gap_s", "vllm-0.19, elsewhere", older.gap_s, fmean, tuple(timed)),
        frontends(data),
    ]


def with_constant(profile: Profile, engine: str, name: str, value_s: float) -> Profile:
    """The profile on that engine, one of whose constants is replaced."""
    return with_engine(profile, msgspec.structs.replace(engine_of(engine, profile), **{name: value_s}))


def engine_constant(engine: str, name: str, value_s: float) -> Callable[[Profile], Profile]:
    return lambda profile: with_constant(profile, engine, name, value_s)


def shipped_step(step_s: float) -> Callable[[Profile], Profile]:
    """The shipped engine of two H100s in place of the profile's, with another step_s."""
    engine = msgspec.structs.replace(load_engine("vllm-0.12", "h100-sxm", 2), step_s=step_s)
    return lambda profile: with_engine(profile, engine)


def run_errors(run: RunSpec, data: Path, metric: str, change: Callable[[Profile], Profile]) -> list[float]:
    """Errors of every cell with a profile that is changed so; of throughput those that draft, since the others do not
    see the constant."""
    judged, _ = judge_run(run, data, change)
    drafting_only = metric == "output_throughput"
    seen = [each for each in judged if each.cell.num_speculative_tokens or not drafting_only]
    return [each.error_pct(metric) or 0.0 for each in seen]


def frontends(data: Path) -> Constant:
    """SGLang's time before the queue: medians of what first tokens come later than without one, by GPU."""
    with_labels = [cell_of(row) for row in read_served(data / SERVED)]
    drafts = drafting(with_labels)
    known = [
        cell
        for cell in with_labels
        if cell.engine == "sglang" and is_fitted(cell) and cell.source == RECIPE and cell.id not in drafts
        if load_engine("sglang-0.5", cell.gpu, cell.tp).frontend_s
    ]
    of_gpu = grouped(known, lambda cell: cell.gpu)
    sources = []
    for gpu, cells in sorted(of_gpu.items()):
        late_s = [1e-3 * (cell.measured["ttft_ms"] - first_token_ms(cell, 0.0)) for cell in cells]
        sources.append(
            Source(f"{gpu}, {len(cells)} marked cells", median(late_s), "TTFT", partial(served_errors, cells))
        )
    pooled_s = load_engine("sglang-0.5", "b200-sxm", 8).frontend_s
    return Constant("frontend_s", "sglang-0.5, H200, B200 and B300", pooled_s, fmean, tuple(sources))


def first_token_ms(cell: Cell, frontend_s: float) -> float:
    profile = with_constant(profile_of(cell)[0], engine_name(cell), "frontend_s", frontend_s)
    return means(raw_scenario(cell, profile.name), profile)["ttft_ms"]


def served_errors(cells: Sequence[Cell], frontend_s: float) -> list[float]:
    return [off_pct(first_token_ms(cell, frontend_s), cell.measured["ttft_ms"]) for cell in cells]


def main(data: Path, out: Path = TABLE) -> None:
    warnings.simplefilter("ignore")
    found = []
    for constant in constants(data):
        found += left_out(constant)
        print(*found[-len(constant.sources) :], sep="\n", file=sys.stderr)
    write_csv(out, LeftOut._fields, found)
