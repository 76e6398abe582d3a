"""Open loops of BLIS's authors: Llama-2-7B under vLLM 0.15.1 on one H100, constant arrivals, prompts that repeat.

A hundred prompts go round, so that the prefix cache has all of a prompt but its last block; lengths are the means of a
stage. Nothing is fitted on them: the shipped profile and the engine of that version. Time per output token is taken
from latencies, since the client counts two chunks a token. Not here: what other simulators predict of the same run
(validation.pages.leaderboard).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sim.compare.side_by_side import compare
from sim.costs.profile_files import load
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario
from validation.accuracy.sections import Line, Row, Section, number, percent, profile_text
from validation.tables import csv_rows, markdown_table, off_pct

TABLE = "unlicensed_local_only/blis/blis_vllm_h100_lifecycle.csv"
TITLE = "H100, Llama-2-7B, vLLM 0.15, open loops"
SHARED_RUN = "codegen"
"""The run that other simulators predict, too."""
PROFILE, ENGINE, SYNCHRONOUS = "h100-sxm/llama-2-7b", "vllm-0.19", "vllm-0.12"
NUM_PROMPTS, NUM_WARMUPS = 1500, 200
NUM_PREFIXES, BLOCK = 100, 16
CONSTANT = 1e6
"""Burstiness of arrivals that come at equal distances."""
OVERLOADED = 0.5
"""A stage that fails more of its requests than this says nothing about the engine's speed."""


class Stage(NamedTuple):
    """One rate of a run; milliseconds are means."""

    run: str
    rate_per_s: float
    num_requests: int
    failed_share: float
    input_len: int
    output_len: float
    max_num_seqs: int
    max_num_batched_tokens: int
    e2el_ms: float
    ttft_ms: float

    @property
    def tpot_ms(self) -> float:
        return (self.e2el_ms - self.ttft_ms) / (self.output_len - 1.0)


class Judged(NamedTuple):
    stage: Stage
    e2el_ms: float
    ttft_ms: float
    tpot_ms: float

    def error_pct(self, metric: str) -> float:
        return off_pct(getattr(self, metric), getattr(self.stage, metric))


def stage_of(row: Mapping[str, str]) -> Stage:
    ended, failed = int(row["successes"]), int(row["failures"])
    return Stage(
        run=row["run"].rpartition("-")[2],
        rate_per_s=float(row["requested_rate"]),
        num_requests=ended,
        failed_share=failed / (ended + failed),
        input_len=round(float(row["prompt_len_mean_tokens"])),
        output_len=float(row["output_len_mean_tokens"]),
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        e2el_ms=float(row["request_latency_mean_ms"]),
        ttft_ms=float(row["time_to_first_token_mean_ms"]),
    )


def read(path: Path) -> list[Stage]:
    return [stage_of(row) for row in csv_rows(path) if row["requested_rate"]]


def judge(stage: Stage, engine: str = ENGINE) -> Judged:
    profile = load(PROFILE)
    scenario = Scenario.of(
        profile=profile.name,
        policy="autoregressive",
        num_prompts=NUM_PROMPTS,
        request_rate=stage.rate_per_s,
        input_len=BLOCK,
        output_len=round(stage.output_len),
        num_speculative_tokens=0,
        **{
            "engine.name": engine,
            "engine.max_num_seqs": stage.max_num_seqs,
            "engine.max_num_batched_tokens": stage.max_num_batched_tokens,
            "workload.burstiness": CONSTANT,
            "workload.num_warmups": NUM_WARMUPS,
            "workload.prefix_len": stage.input_len - BLOCK,
            "workload.num_prefixes": NUM_PREFIXES,
        },
    )
    (served,) = compare(resolve_all(scenario, profile), workers=1).policies
    e2el_ms, ttft_ms, tpot_ms = (served.mean[f"mean_{name}_ms"] or 0.0 for name in ("e2el", "ttft", "tpot"))
    return Judged(stage, e2el_ms, ttft_ms, tpot_ms)


def open_loops_section(data: Path) -> Section:
    stages = read(data / TABLE)
    judged = [judge(stage) for stage in stages if stage.failed_share <= OVERLOADED]
    synchronous = [judge(each.stage, SYNCHRONOUS).error_pct("e2el_ms") for each in judged]
    shared = [each for each in judged if each.stage.run == SHARED_RUN]
    left_out = [f"{stage.run} at {stage.rate_per_s:g}/s" for stage in stages if stage.failed_share > OVERLOADED]
    lines = [_whole_run(shared, metric) for metric in ("e2el_ms", "ttft_ms")]
    about = [
        "inference-sim/training@ed5c1d26 (no licence; figures quoted): vLLM 0.15.1, inference-perf, constant arrivals; "
        "part of the table",
        profile_text(load(PROFILE)),
        "fitted: nothing",
        f"engine `{ENGINE}`, {NUM_PROMPTS} requests a stage, the first {NUM_WARMUPS} left out; {NUM_PREFIXES} prompts "
        f"that share all but {BLOCK} tokens; outputs all of the mean length",
        f"overloaded, most requests failed, left out: {', '.join(left_out) or 'none'}",
        f"a step takes longer than its kernels, as without asynchronous scheduling: with `{SYNCHRONOUS}` the mean "
        f"latencies of these stages are {', '.join(f'{error:+.0f}' for error in synchronous)} % off. The source does "
        "not say how it scheduled; it traced every request and step (OpenTelemetry), which takes host time",
    ]
    table = [
        [each.stage.run, f"{each.stage.rate_per_s:g}"]
        + [
            text
            for name in ("e2el_ms", "ttft_ms", "tpot_ms")
            for text in (number(getattr(each.stage, name)), number(getattr(each, name)), percent(each.error_pct(name)))
        ]
        for each in judged
    ]
    headings = [
        f"{name}{part}" for name in ("E2EL", "TTFT", "TPOT") for part in (", real (ms)", ", lanesim", ", error")
    ]
    tail = markdown_table(["run", "requests/s", *headings], table)
    return Section(title=TITLE, about=about, lines=lines, tail=tail, rows=list(map(_row, judged)))


def _whole_run(stages: list[Judged], metric: str) -> Line:
    """The line of a metric over all requests of a run's stages."""
    weights = [each.stage.num_requests for each in stages]
    real, simulated = (
        fmean([getattr(of, metric) for of in group], weights=weights)
        for group in ([each.stage for each in stages], stages)
    )
    what = f"{metric.partition('_')[0].upper()} mean (ms), {SHARED_RUN}, {sum(weights):,} requests"
    return Line.beside(what, real, simulated)


def _row(judged: Judged) -> Row:
    return Row(
        gpu="H100",
        engine=ENGINE,
        model="llama-2-7b",
        workload=f"{judged.stage.run}, open loop",
        concurrency=f"{judged.stage.rate_per_s:g}/s",
        errors_pct={"TPOT": judged.error_pct("tpot_ms"), "TTFT": judged.error_pct("ttft_ms")},
    )
