"""Real vLLM runs with per-request timestamps: LLMServingSim's, on an RTX 4090 and an RTX PRO 6000.

Their tables are of the same GPUs, and so is an independent one of aiconfigurator. Not here: closed loops
(validation.accuracy.closed_loops), the words of the report (validation.accuracy.sections).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from calibrate.cli.engine_flags import EngineFlags, engine_block
from calibrate.importers.aiconfigurator.deployment import Deployment, import_deployment
from calibrate.judge.fit_cells import fit_constant
from calibrate.judge.vllm_requests import RealRun, read_requests
from calibrate.judge.vllm_runs import VllmVerdict, judge_run, scenario_of
from sim.costs.engine_costs import load_engine, with_engine
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import MODELS
from validation.accuracy.sections import Line, Section, profile_text
from validation.tables import as_written

SHAPE = MODELS["llama-3.1-8b"]
RUNS = "llmservingsim/bench/examples"
PROMPTS = "llmservingsim/workloads/sharegpt-llama-3.1-8b-300-sps10.prefix_blocks.jsonl"
"""What the prompts of both runs have in common: ids of their 16-token blocks, row by row."""
RTX_4090_PROFILE = "rtx-4090/llama-3.1-8b"
RTX_PRO_PROFILE = str(Path(__file__).with_name("rtx-pro-6000-llama-3.1-8b.json"))
"""LLMServingSim's points of that GPU; the shipped profile of that name is of aiconfigurator's tables."""
LLMSERVINGSIM = "casys-kaist/LLMServingSim@5daddb21a545"
AICONFIGURATOR_REVISION = "095f58a51c4c"
ENGINE = "vllm-0.19"
FITTED_CONSTANT = "gap_s"
"""The constant of profile.host that is fitted on the TPOT mean of the RTX PRO 6000 run."""
STATISTICS = ("mean", "p50", "p95", "p99")
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
THROUGHPUT = "output tok/s"
PEER_METRICS = {"TTFT": "ttft", "TPOT": "tpot", "Latency": "e2el"}
PEER_STATISTICS = {"Mean": "mean", "Median": "p50", "P95": "p95", "P99": "p99"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run in the data folder, and how its engine was started (its meta.json)."""

    title: str
    folder: str
    flags: EngineFlags
    bars_pct: Mapping[str, float]
    """Bars by "TPOT mean" and the like."""


RTX_4090 = Run(
    title="RTX 4090, Llama-3.1-8B, vLLM 0.19",
    folder="RTX4090/Llama-3.1-8B",
    flags={"max_num_seqs": 256, "max_num_batched_tokens": 2048, "num_gpu_blocks": 2588},
    bars_pct={"TPOT mean": 0.3, "E2EL mean": 0.5, THROUGHPUT: 1.0, "TTFT mean": 0.6, "TTFT p95": 0.6},
)
RTX_PRO = Run(
    title="RTX PRO 6000, Llama-3.1-8B, vLLM 0.19",
    folder="RTXPRO6000/Llama-3.1-8B",
    flags={"max_num_seqs": 128, "max_num_batched_tokens": 2048},
    bars_pct={"E2EL mean": 1.5, THROUGHPUT: 1.5, "TTFT mean": 2.0},
)
RTX_PRO_INDEPENDENT = Run(
    title="The same run from aiconfigurator's tables",
    folder=RTX_PRO.folder,
    flags=RTX_PRO.flags,
    bars_pct={"TPOT mean": 4.0, "E2EL mean": 4.0, THROUGHPUT: 4.0, "TTFT mean": 8.0},
)


def aiconfigurator_profile(data: Path) -> Profile:
    """Llama-3.1-8B from aiconfigurator's tables of that GPU, without the gap fitted on the run itself."""
    gpu = "rtx-pro-6000-server"
    profile = import_deployment(data / "aiconfigurator", gpu, SHAPE, None, Deployment(), source=AICONFIGURATOR_REVISION)
    without_gap = msgspec.structs.replace(load_engine(ENGINE, gpu), gap_s=0.0, source="no device gap")
    return as_written(with_engine(profile, without_gap))


def sections(data: Path) -> list[Section]:
    rtx_4090 = section(data, RTX_4090, load(RTX_4090_PROFILE), "fitted: nothing")
    profile, fitted_ms = _fitted(data, RTX_PRO, load(RTX_PRO_PROFILE))
    fit = f"{FITTED_CONSTANT} = {fitted_ms:.4f} ms"
    rtx_pro = section(data, RTX_PRO, profile, f"fitted: {fit}, on the TPOT mean of this run", fitted_metric="TPOT mean")
    alone = section(
        data,
        RTX_PRO_INDEPENDENT,
        aiconfigurator_profile(data),
        "fitted: nothing; kernel times come from aiconfigurator's tables alone, and no device gap is assumed, since "
        "the known one was fitted on this very run",
    )
    return [rtx_4090, rtx_pro, alone]


def section(data: Path, run: Run, profile: Profile, fit: str, *, fitted_metric: str | None = None) -> Section:
    verdict = judged(real_run(data, run), run, profile)
    metrics = verdict.result["metrics"]
    peers = peer_figures((data / RUNS / run.folder / "validation/summary.txt").read_text())
    lines = []
    for name, title in TITLES.items():
        for statistic in STATISTICS:
            what = f"{title} {statistic}"
            line = {**metrics[name][statistic], "bar_pct": run.bars_pct.get(what), "is_fit": what == fitted_metric}
            peer, peer_error_pct = peers.get((name, statistic), (None, None))
            lines.append(Line(what=f"{what} (ms)", peer=peer, peer_error_pct=peer_error_pct, **line))
    lines.append(Line(what=THROUGHPUT, bar_pct=run.bars_pct.get(THROUGHPUT), **metrics["output_throughput"]))
    arrival = metrics["ttft_arrival"]["mean"]
    lines.append(Line(what="TTFT from arrival, mean (ms)", **arrival))
    return Section(title=run.title, about=_about(run, profile, fit, verdict), lines=lines, has_peer=True)


def judged(real: RealRun, run: Run, profile: Profile) -> VllmVerdict:
    scenario = scenario_of(
        Path("requests.jsonl"),
        len(real.requests),
        profile.name,
        "continuous",
        engine_block(run.flags),
        {},
        0,
    )
    return judge_run(real, scenario, profile)


def _fitted(data: Path, run: Run, profile: Profile) -> tuple[Profile, float]:
    """The profile with the host constant that makes the TPOT mean right, and its milliseconds."""
    real = real_run(data, run)

    def slowness_pct(candidate: Profile) -> float:
        error_pct: float = judged(real, run, candidate).result["metrics"]["tpot"]["mean"]["error_pct"]
        return error_pct

    fitted = fit_constant(profile, FITTED_CONSTANT, slowness_pct)
    return as_written(fitted.profile), 1e3 * fitted.values_s[FITTED_CONSTANT]


def real_run(data: Path, run: Run) -> RealRun:
    return read_requests(data / RUNS / run.folder / "vllm/requests.jsonl", data / PROMPTS)


def _about(run: Run, profile: Profile, fit: str, verdict: VllmVerdict) -> list[str]:
    told = verdict.result["scenario"]["engine"] | {
        name: verdict.result[name] for name in ("engine", "async_scheduling")
    }
    settings = ", ".join(f"{name} {value}" for name, value in told.items() if name != "name")
    notes = [note for note in verdict.result["notes"] if "ITL" not in note]
    return [
        f"real run and committed figures: {LLMSERVINGSIM} (MIT), {RUNS.partition('/')[2]}/{run.folder}; "
        f"{verdict.result['num_requests']} ShareGPT requests; TTFT and E2EL from queued_ts",
        profile_text(profile),
        fit,
        f"engine: {settings}",
        f"{verdict.result['preemptions']} preemptions simulated, {verdict.result['prefix_cache_hit_rate']:.1%} of the "
        "prompts' blocks found in the prefix cache",
        *notes,
    ]


def peer_figures(text: str) -> dict[tuple[str, str], tuple[float, float]]:
    """(metric, statistic) -> LLMServingSim's simulated milliseconds and its error in percent, from its summary.txt.

    The error is taken anew from its two columns; the file rounds it. Raises ValueError where it has no figure.
    """
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(\w+) (\w+)\s+([\d.]+)\s+([\d.]+)\s+[+-][\d.]+%\s*", line)
        if match and match[1] in PEER_METRICS and match[2] in PEER_STATISTICS:
            real, simulated = float(match[3]), float(match[4])
            error_pct = 100.0 * (simulated - real) / real
            found[PEER_METRICS[match[1]], PEER_STATISTICS[match[2]]] = simulated, error_pct
    if not found:
        raise ValueError("summary.txt of LLMServingSim holds no figure: want lines such as 'TTFT Mean 1.0 1.1 +10.0%'")
    return found
