"""A recorded vLLM run beside its simulation: the same arrivals and lengths, and the error of every metric.

As vLLM's timestamps and the data's authors have it, TTFT and E2EL count from queued_ts, when the engine took the
request in; `ttft_arrival` counts from arrival. TPOT is (last - first token) / (output tokens - 1), left out where only
one token came out (design, section 7). Files of requests do not have gaps between tokens, so the real ITL is null.
Not here: reading the file (calibrate.served.stamped_requests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from calibrate.served.as_sent import as_requests, fresh, metrics_of
from calibrate.served.load import ServedLoad
from sim.costs.profile import Profile
from sim.engine.fleet import Routing
from sim.engine.time_series import GapSamples
from sim.files.json_values import Json
from sim.interface.request import Request
from sim.metrics import compared, summary
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats
from sim.metrics.summary import prefix_cache
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario, to_plain
from sim.run.simulate import simulate

VALIDATION_SCHEMA = 1
LATENCIES = (*compared.LATENCIES, "ttft_arrival")
COLUMNS = "arrival=arrival_time,unit=s,prompt=input_toks,output=output_toks,id=request_id"
"""Columns that sim.workload.traces takes to read such a file as a workload."""


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


def judge_run(real: ServedLoad, scenario: Scenario, profile: Profile) -> dict[str, Any]:
    """Simulate the run's requests and compare. Raises ValueError for what cannot run."""
    sent = as_requests(real.requests)
    workload = msgspec.structs.replace(scenario.workload, num_prompts=len(sent))
    scenario = msgspec.structs.replace(scenario, workload=workload)
    policy = scenario.policy[0]
    record = simulate(resolve_all(scenario, profile)[0], scenario.seed, requests=fresh(sent))
    simulated = metrics_of(record.requests, record.gaps, latencies_s(record.requests))
    return {
        "schema": VALIDATION_SCHEMA,
        "scenario": to_plain(scenario),
        "scenario_hash": scenario.digest,
        "profile": {"name": profile.name, "source": profile.source},
        "policy": policy,
        "engine": record.engine,
        "async_scheduling": record.is_async,
        "caps": record.caps,
        "seed": scenario.seed,
        "num_requests": len(sent),
        "clock_offset_s": real.clock_offset_s,
        "preemptions": sum(request.num_preemptions for request in record.requests),
        **prefix_cache(record, record.requests),
        "metrics": compared.errors(metrics_of(sent, GapSamples(), latencies_s(sent)), simulated, LATENCIES),
        "notes": _notes(sent, record),
    }


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


def _notes(sent: Sequence[Request], simulated: RunRecord) -> list[str]:
    notes = ["the real ITL is not known: the file has no times between the first token and the last"]
    num_single = sum(request.output_tokens == 1 for request in sent)
    if num_single:
        notes.append(f"TPOT leaves out {num_single} requests of one output token")
    if any(isnan(request.queued_s) for request in simulated.requests):
        notes.append("the simulated engine does not say when it takes a request in: TTFT and E2EL count from arrival")
    return notes
