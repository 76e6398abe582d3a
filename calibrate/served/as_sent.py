"""Requests that a server answered, as the simulator's: simulated again when and as long as they were sent, with the
acceptance that they show. Of a recorded vLLM run: the same arrivals and lengths, and the error of every metric.

As vLLM's timestamps and the data's authors have it, TTFT and E2EL of a recorded run count from queued_ts, when the
engine took the request in; `ttft_arrival` counts from arrival. TPOT is (last - first token) / (output tokens - 1), left
out where only one token came out (design, section 7). Files of requests do not have gaps between tokens, so the real
ITL is null. Not here: sending requests (calibrate.server.endpoint), reading files of them
(calibrate.served.stamped_requests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import structs

from calibrate.served.load import Accepted, ServedLoad, ServedRequest, StampedRequest, mean_load
from calibrate.served.request_counts import MIN_REQUESTS, spread_of_requests
from sim.costs.profile import Profile
from sim.engine.fleet import Routing
from sim.engine.time_series import GapSamples
from sim.files.json_values import Json
from sim.interface.request import Request
from sim.metrics import compared
from sim.metrics.compared import THROUGHPUT
from sim.metrics.records import RunRecord
from sim.metrics.stats import Floats
from sim.metrics.summary import latencies_s, prefix_cache, slo_shares, spread_ms
from sim.run.resolve import resolve_all
from sim.run.scenario import Scenario, parse_scenario, to_plain
from sim.run.simulate import simulate

GOODPUT = "request_goodput"
VALIDATION_SCHEMA = 1
LATENCIES = (*compared.LATENCIES, "ttft_arrival")
COLUMNS = "arrival=arrival_time,unit=s,prompt=input_toks,output=output_toks,id=request_id"
"""Columns that sim.workload.traces takes to read such a file as a workload."""


def as_served(sent: Sequence[ServedRequest], planned: Sequence[Request] = ()) -> tuple[list[Request], GapSamples]:
    """Requests as `as_requests` has them, with the gaps between events that hold tokens."""
    gaps = GapSamples()
    for each in sent:
        for gap_s in each.gaps_s:
            gaps.add(gap_s)
    return as_requests(sent, planned), gaps


def as_requests(sent: Sequence[ServedRequest], planned: Sequence[Request] = ()) -> list[Request]:
    """The answered ones as finished requests, whose arrival is when they were sent, in that order, with the content of
    those that were `planned`. Raises ValueError where none was answered."""
    contents = {each.index: each.content for each in planned}
    answered = sorted((each for each in sent if not each.failed), key=lambda each: each.sent_s)
    if not answered:
        raise ValueError("no request was answered, so no error is known")
    requests = []
    for index, each in enumerate(answered):
        stamped = each if isinstance(each, StampedRequest) else None
        requests.append(
            Request(
                index=index,
                id=str(index) if stamped is None else stamped.id,
                arrival_s=each.sent_s - answered[0].sent_s,
                prompt_tokens=each.prompt_tokens,
                output_tokens=each.output_tokens,
                content=contents.get(each.index, ()) if stamped is None else stamped.content,
                prefilled_tokens=each.prompt_tokens,
                emitted_tokens=each.output_tokens,
                queued_s=nan if stamped is None else stamped.queued_s,
                scheduled_s=nan if stamped is None else stamped.scheduled_s,
                first_token_s=each.first_s - answered[0].sent_s,
                last_token_s=each.last_s - answered[0].sent_s,
            )
        )
    return requests


def closed_loop(
    at_once: int, number: int, sent: Sequence[ServedRequest], accepted: Accepted | None = None
) -> ServedLoad:
    """The load of so many requests at once, with the means of all that were answered. Raises ValueError for none."""
    served = as_served(sent)
    means = metrics(served)
    ttft_ms, tpot_ms = means["mean_ttft_ms"], means["mean_tpot_ms"]
    drafting = "" if accepted is None else ", drafting"
    load = mean_load(
        f"{at_once} at once{drafting}, round {number + 1}",
        at_once,
        fmean(each.prompt_tokens for each in served[0]),
        fmean(each.output_tokens for each in served[0]),
        ttft_s=ttft_ms and ttft_ms / 1e3,
        tpot_s=tpot_ms and tpot_ms / 1e3,
        output_tokens_per_s=means[THROUGHPUT],
        accepted=accepted,
        num_requests=len(served[0]),
    )
    return structs.replace(load, number=number, requests=tuple(sent))


def fresh(requests: Sequence[Request]) -> list[Request]:
    """The same requests, unserved."""
    return [
        Request(each.index, each.id, each.arrival_s, each.prompt_tokens, each.output_tokens, each.content)
        for each in requests
    ]


def simulated(
    scenario: Scenario, profile: Profile, requests: Sequence[Request], seed: int | None = None
) -> tuple[list[Request], GapSamples]:
    """The same requests, served by the simulator with the scenario's seed or another one. Raises ValueError."""
    resolved = resolve_all(scenario, profile)[0]
    record = simulate(resolved, scenario.seed if seed is None else seed, requests=fresh(requests))
    return record.requests.objects(), record.gaps


def metrics(
    served: tuple[Sequence[Request], GapSamples], slo_ms: Mapping[str, float | None] = {}
) -> dict[str, float | None]:
    """Metrics of the finished requests, latencies from arrival, under the simulator's keys; with `slo_ms` the requests
    per second that meet all of them."""
    requests = [each for each in served[0] if each.is_finished]
    told = metrics_of(requests, served[1], latencies_s(requests))
    if any(bound is not None for bound in slo_ms.values()):
        last_s, first_s = max(each.last_token_s for each in requests), min(each.arrival_s for each in requests)
        good = slo_shares(requests, slo_ms)["all"]
        told[GOODPUT] = None if good is None else good * len(requests) / (last_s - first_s)
    return told


def metrics_of(
    requests: Sequence[Request], gaps: GapSamples, latencies: Mapping[str, Floats]
) -> dict[str, float | None]:
    """Metrics of one side, finished requests with their `latencies` in seconds, under the simulator's keys."""
    run: dict[str, float | None] = {THROUGHPUT: output_throughput(requests)}
    for name, values_s in latencies.items():
        run |= spread_ms(name, values_s, np.ones(len(values_s)))
    return run | spread_ms("itl", np.array(gaps.gaps_s), np.array(gaps.counts, dtype=float))


def output_throughput(requests: Sequence[Request]) -> float | None:
    """Output tokens per second from the first arrival to the last token; None for a run that took no time."""
    duration_s = max(request.last_token_s for request in requests) - min(request.arrival_s for request in requests)
    return sum(request.output_tokens for request in requests) / duration_s if duration_s > 0.0 else None


def step_rates(accepted: Accepted, sent: Sequence[ServedRequest]) -> tuple[float, ...]:
    """Accepted share by position of all steps of requests that decode, some of which may have no draft, as with n-grams
    that find none; empty where it is not known."""
    steps = sum(len(each.gaps_s) for each in sent)
    return tuple(min(1.0, accepted.drafts / steps) * rate for rate in accepted.rates) if steps else ()


def quote_of(accepted: Accepted, sent: Sequence[ServedRequest], spread: float | None = None) -> str:
    """Acceptance in `--acceptance`'s notation by the server's count of drafts, and by how many steps each request
    needed: requests differ in more than draws by `spread`, which is looked for where it is not given."""
    rates = step_rates(accepted, sent)
    if not rates:
        return accepted.quote
    spread = spread_of(rates, sent) if spread is None else spread
    return "vllm:" + ",".join(f"{rate:.4g}" for rate in rates) + (f"~{spread:g}" if spread else "")


def spread_of(rates: tuple[float, ...], sent: Sequence[ServedRequest]) -> float:
    """The spread of requests by their steps, with the tokens of these scaled to what `rates` give, since an end cuts
    the last step's; 0 where too few tell it, or do not tell it from 0."""
    counted = [(len(each.gaps_s), each.output_tokens - 1) for each in sent if each.gaps_s]
    if not rates or len(counted) < MIN_REQUESTS:
        return 0.0
    scale = (1.0 + sum(rates)) * sum(steps for steps, _ in counted) / sum(tokens for _, tokens in counted)
    told = spread_of_requests(rates, [(steps, scale * tokens) for steps, tokens in counted])
    return told.value if told.low else 0.0


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
    workload = structs.replace(scenario.workload, num_prompts=len(sent))
    scenario = structs.replace(scenario, workload=workload)
    policy = scenario.policy[0]
    record = simulate(resolve_all(scenario, profile)[0], scenario.seed, requests=fresh(sent))
    simulated = metrics_of(record.requests, record.gaps, latencies_from_queue_s(record.requests))
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
        "metrics": compared.errors(metrics_of(sent, GapSamples(), latencies_from_queue_s(sent)), simulated, LATENCIES),
        "notes": _notes(sent, record),
    }


def latencies_from_queue_s(requests: Sequence[Request]) -> dict[str, Floats]:
    """`ttft`, `e2el`, `ttft_arrival` [requests] and `tpot` [requests of two or more tokens], seconds.

    An engine that does not say when it took a request in has it counted from arrival.
    """
    from_arrival_s = latencies_s(requests)
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
