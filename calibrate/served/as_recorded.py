"""A real vLLM run beside its simulation: the same arrivals and lengths, the error of every metric, and their figures.

As vLLM's timestamps and the data's authors have it, TTFT and E2EL count from queued_ts, when the engine took the
request in; `ttft_arrival` counts from arrival. TPOT is (last - first token) / (output tokens - 1), left out where only
one token came out (design, section 7). Files of requests do not have gaps between tokens, so the real ITL is null.
Not here: reading the file (calibrate.served.stamped_requests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from calibrate.served.stamped_requests import RealRun, fresh
from sim.costs.profile import Profile
from sim.engine.fleet import Routing
from sim.engine.time_series import GapSamples
from sim.files.json_values import Json
from sim.files.write import write_figure
from sim.interface.request import Request
from sim.metrics import compared, summary
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats
from sim.metrics.summary import prefix_cache, spread_ms
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario, to_plain
from sim.run.simulate import simulate

VALIDATION_SCHEMA = 1
FIGURES = ("validation-scatter.png", "validation-cdf.png")
LATENCIES = (*compared.LATENCIES, "ttft_arrival")
COLUMNS = "arrival=arrival_time,unit=s,prompt=input_toks,output=output_toks,id=request_id"
"""Columns that sim.workload.traces takes to read such a file as a workload."""

SCATTERED = {"ttft": "TTFT", "e2el": "E2EL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmVerdict:
    """A real run beside its simulation."""

    real: RealRun
    simulated: RunRecord
    result: dict[str, Any]
    """The verdict for JSON."""


def scenario_of(path: Path, profile: str, raw: Mapping[str, Any]) -> Scenario:
    """The scenario of a run in `path`: `raw`, whose workload is the recorded one; vLLM sends each request to the
    data-parallel rank with the fewest (four times those that wait, and those that run). Raises ValueError."""
    workload: dict[str, Json] = {
        "dataset_name": "jsonl",
        "dataset_path": f"{path.name}#{COLUMNS}",
        "trace_arrivals": "recorded",
    }
    given = dict(raw.get("devices", {}))
    devices = {"routing": Routing.LEAST_OUTSTANDING.value, **given} if given.get("count", 1) != 1 else given
    workload |= raw.get("workload", {})
    return parse_scenario({"policy": "continuous", **raw, "workload": workload, "devices": devices, "profile": profile})


def judge_run(real: RealRun, scenario: Scenario, profile: Profile) -> VllmVerdict:
    """Simulate the run's requests and compare. Raises ValueError for what cannot run."""
    workload = msgspec.structs.replace(scenario.workload, num_prompts=len(real.requests))
    scenario = msgspec.structs.replace(scenario, workload=workload)
    policy = scenario.policy[0]
    record = simulate(resolve_all(scenario, profile)[0], scenario.seed, requests=fresh(real.requests))
    simulated = metrics_of(record.requests, record.gaps, latencies_s(record.requests))
    result = {
        "schema": VALIDATION_SCHEMA,
        "scenario": to_plain(scenario),
        "scenario_hash": scenario.digest,
        "profile": {"name": profile.name, "source": profile.source},
        "policy": policy,
        "engine": record.engine,
        "async_scheduling": record.is_async,
        "caps": record.caps,
        "seed": scenario.seed,
        "num_requests": len(real.requests),
        "clock_offset_s": real.clock_offset_s,
        "preemptions": sum(request.num_preemptions for request in record.requests),
        **prefix_cache(record, record.requests),
        "metrics": compared.errors(
            metrics_of(real.requests, GapSamples(), latencies_s(real.requests)), simulated, LATENCIES
        ),
        "notes": _notes(real, record),
    }
    return VllmVerdict(real=real, simulated=record, result=result)


def metrics_of(
    requests: Sequence[Request], gaps: GapSamples, latencies: Mapping[str, Floats]
) -> dict[str, float | None]:
    """Metrics of one side, finished requests with their `latencies` in seconds, under the simulator's keys."""
    run: dict[str, float | None] = {compared.THROUGHPUT: output_throughput(requests)}
    for name, values_s in latencies.items():
        run |= spread_ms(name, values_s, np.ones(len(values_s)), compared.PERCENTILES)
    return run | spread_ms("itl", np.array(gaps.gaps_s), np.array(gaps.counts, dtype=float), compared.PERCENTILES)


def latencies_s(requests: Sequence[Request]) -> dict[str, Floats]:
    """`ttft`, `e2el`, `ttft_arrival` [requests] and `tpot` [requests of two or more tokens], seconds.

    An engine that does not say when it took a request in has it counted from arrival.
    """
    from_arrival_s = summary.latencies_s(requests)
    queued = np.array([request.queued_s - request.arrival_s for request in requests])
    waited = np.where(np.isnan(queued), 0.0, queued)
    return {
        "ttft": from_arrival_s["ttft"] - waited,
        "tpot": from_arrival_s["tpot"],
        "e2el": from_arrival_s["e2el"] - waited,
        "ttft_arrival": from_arrival_s["ttft"],
    }


def output_throughput(requests: Sequence[Request]) -> float | None:
    """Output tokens per second from the first arrival to the last token; None for a run that took no time."""
    duration_s = max(request.last_token_s for request in requests) - min(request.arrival_s for request in requests)
    return sum(request.output_tokens for request in requests) / duration_s if duration_s > 0.0 else None


def _notes(real: RealRun, simulated: RunRecord) -> list[str]:
    notes = ["the real ITL is not known: the file has no times between the first token and the last"]
    num_single = sum(request.output_tokens == 1 for request in real.requests)
    if num_single:
        notes.append(f"TPOT leaves out {num_single} requests of one output token")
    if any(isnan(request.queued_s) for request in simulated.requests):
        notes.append("the simulated engine does not say when it takes a request in: TTFT and E2EL count from arrival")
    return notes


def draw_vllm(directory: Path, verdict: VllmVerdict) -> None:
    """validation-scatter.png and validation-cdf.png. Raises ValueError without the plotting libraries."""
    from sim.report.pictures.figures import draw_cdfs
    from sim.report.pictures.panels import set_theme

    set_theme()
    real, simulated = latencies_s(verdict.real.requests), latencies_s(verdict.simulated.requests)
    result = verdict.result
    title = f"{result['profile']['name']}, {result['policy']}: {result['num_requests']} requests of a real vLLM run"
    sides = {"real": real, "simulated": simulated}
    write_figure(directory / FIGURES[0], partial(_draw_scatter, title=title, real=real, simulated=simulated))
    write_figure(directory / FIGURES[1], partial(draw_cdfs, title=title, sides=sides))


def _draw_scatter(path: Path, title: str, real: Mapping[str, Floats], simulated: Mapping[str, Floats]) -> None:
    from sim.report.pictures.panels import canvas, headline, panel, save_and_close, set_log_scale

    figure, axes = canvas(1, len(SCATTERED), width=3.6, height=4.4)
    for axis, (name, label) in zip(axes[0], SCATTERED.items(), strict=True):
        ours, theirs = real[name] * 1e3, simulated[name] * 1e3
        is_shown = (ours > 0.0) & (theirs > 0.0)
        axis.scatter(ours[is_shown], theirs[is_shown], s=10, alpha=0.6, linewidths=0)
        ends = [*ours[is_shown], *theirs[is_shown]]
        low, high = (min(ends) / 1.2, max(ends) * 1.2) if ends else (1.0, 10.0)
        axis.plot([low, high], [low, high], color="black", linewidth=0.8)
        axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")
        for side in "xy":
            set_log_scale(axis, side)
        panel(axis, x=f"{label}, real (ms)", y=f"{label}, simulated (ms)")
    headline(figure, title)
    save_and_close(figure, path)
