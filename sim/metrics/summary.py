"""Metrics of one run from its record alone, exactly as `vllm bench serve` defines them and under its keys.

TTFT = first token - arrival; E2EL = last token - arrival; TPOT = (E2EL - TTFT) / (output tokens - 1), left out for one
token; ITL = gaps between emissions, one sample per verify round. Requests unfinished at the end of the run are
censored: counted, and left out of the latencies. Undefined values are None. Not here: intervals (sim.metrics.stats).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.interface.request import Request
from sim.interface.request_columns import Requests
from sim.metrics.records import RunRecord
from sim.metrics.stats import Counts, Floats, effective_count, mean_and_variance, weighted_percentiles
from sim.workload.classes import SloClass

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
LATENCIES = ("ttft", "tpot", "itl", "e2el")
DETAILS = ("start_times", "input_lens", "output_lens", "ttfts", "tpots", "e2els")
ByName = dict[str, int | float | None]
Value = bool | str | int | float | None | ByName | list[float | None]
Run = dict[str, Value]
"""A run's metrics as JSON has them, flat, under the keys of `vllm bench serve`."""
POLL_CPU_S = 1e-6
"""CPU time assumed per poll of an idle worker (a Python loop iteration with a queue check)."""


def _columns(requests: Sequence[Request]) -> list[Floats]:
    """Arrival, first and last token (s), and tokens that came out [requests]."""
    columns = Requests.of(requests)
    return [columns.column(name) for name in ("arrival_s", "first_token_s", "last_token_s", "emitted_tokens")]


def latencies_s(requests: Sequence[Request]) -> dict[str, Floats]:
    """`ttft`, `tpot`, `e2el` [requests] of finished requests, seconds; tpot only where two or more tokens came out."""
    arrival, first, last, tokens = _columns(requests)
    has_gaps = tokens > 1
    return {"ttft": first - arrival, "tpot": (last - first)[has_gaps] / (tokens[has_gaps] - 1), "e2el": last - arrival}


def summarise(
    record: RunRecord,
    *,
    goodput_ms: dict[str, float | None] | None = None,
    num_warmups: int = 0,
    num_cooldowns: int = 0,
) -> Run:
    """All metrics of a run, every key of them. `num_warmups` requests that arrived first are left out, and
    `num_cooldowns` that arrived last. With the latter throughputs are of what comes between the first and the last
    arrival that are measured, or up to the last end where fewer than half of these end by then."""
    everyone, measured = record.requests, measured_requests(record, num_warmups, num_cooldowns)
    finished = finished_of(measured)
    start_s = float(measured.column("arrival_s").min()) if num_warmups and measured else 0.0
    end_s, ended, output_tokens = record.end_s, finished, float(_total(finished, "emitted_tokens"))
    if num_cooldowns:
        lasts_s = finished.column("last_token_s")
        end_s = float(measured.column("arrival_s").max()) if measured else start_s
        if 2 * np.count_nonzero(lasts_s <= end_s) < len(finished):
            end_s = float(lasts_s.max())
        ended = finished_of(everyone)
        lasts_s = ended.column("last_token_s")
        ended = ended.kept((start_s < lasts_s) & (lasts_s <= end_s))
        output_tokens = _emitted(everyone, start_s, end_s)
    duration_s = end_s - start_s
    input_tokens = _total(ended, "prompt_tokens")
    result: Run = {
        "policy": record.policy,
        "seed": record.seed,
        "engine": record.engine,
        "async_scheduling": record.is_async,
        "caps": dict(record.caps),
        "partition": None if record.partition is None else {**record.partition},
        "num_prompts": len(measured),
        "completed": len(finished),
        "censored": len(measured) - len(finished),
        "rejected_requests": record.num_rejected,
        "preemptions": _total(measured, "num_preemptions"),
        "duration": duration_s,
        "total_input_tokens": _total(finished, "prompt_tokens"),
        "total_output_tokens": _total(finished, "emitted_tokens"),
        "request_throughput": _ratio(len(ended), duration_s),
        "output_throughput": _ratio(output_tokens, duration_s),
        "num_gpus": record.num_gpus,
        "output_throughput_per_gpu": _ratio(output_tokens, duration_s * record.num_gpus),
        "total_token_throughput": _ratio(output_tokens + input_tokens, duration_s),
    }
    samples = latencies_s(finished)
    result["effective_requests"] = effective_count(samples["e2el"])
    shares = slo_shares(finished, goodput_ms or {})
    result["slo_attainment"] = shares
    good = shares.get("all")
    result["request_goodput"] = None if good is None else _ratio(good * len(ended), duration_s)
    result["slo_classes"] = {
        f"{each.name}.{key}": value
        for each in record.slo_classes
        for key, value in _class_summary(each, measured, ended, duration_s).items()
    }
    for name in ("ttft", "tpot", "e2el"):
        result |= spread_ms(name, samples[name], np.broadcast_to(1, len(samples[name])))
    result |= spread_ms("itl", np.asarray(record.gaps.gaps_s), np.asarray(record.gaps.counts))
    steady = _ratio(output_tokens, duration_s) if num_cooldowns else _steady_throughput(record, measured)
    result["steady_output_throughput"] = steady
    result["steady_output_throughput_per_gpu"] = None if steady is None else steady / record.num_gpus
    # Of a window that was cut, from completed requests only (report 002) and from all of them.
    for name, requests in (("completed", finished), ("emitted", measured)):
        count, window_s = _total(requests, "emitted_tokens"), record.window_s
        result[f"throughput_{name}_window"] = None if window_s is None else count / window_s
    result |= prefix_cache(record, measured)
    result |= _speculation(record, measured)
    result |= _device(record, duration_s)
    if record.power is not None:
        joules, tokens = record.power.joules(start_s, end_s), _emitted(record.requests, start_s, end_s)
        result["power_w"] = None if joules is None else _ratio(joules, duration_s * record.num_gpus)
        result["joules_per_output_token"] = None if joules is None else _ratio(joules, tokens)
    return result


def number(run: Mapping[str, Value], key: str) -> float | None:
    value = run[key]
    assert value is None or isinstance(value, int | float), key
    return value


def detailed(record: RunRecord) -> Run:
    """Per-request lists under the keys of `vllm bench serve --save-detailed`, in order of arrival, seconds. None for
    what an unfinished request, or one of a single token, does not have."""
    arrival_s, first_s, last_s, tokens = _columns(record.requests)
    is_finished = tokens >= record.requests.column("output_tokens")
    has_gaps = is_finished & (tokens > 1)
    lists = (
        arrival_s.tolist(),
        record.requests.column("prompt_tokens").tolist(),
        tokens.tolist(),
        _where(is_finished, first_s - arrival_s),
        _where(has_gaps, (last_s - first_s) / np.maximum(1, tokens - 1)),
        _where(is_finished, last_s - arrival_s),
    )
    return dict(zip(DETAILS, lists, strict=True))


def _where(is_there: NDArray[np.bool_], values: Floats) -> list[float | None]:
    assert np.isfinite(values[is_there]).all()
    return [value if there else None for value, there in zip(values.tolist(), is_there.tolist(), strict=True)]


def _total(requests: Requests, name: str) -> int:
    return int(requests.column(name).sum(dtype=np.int64))


def _ratio(amount: float, by: float) -> float | None:
    return amount / by if by > 0.0 else None


def spread_ms(name: str, values_s: Floats, counts: Counts) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles of one latency, milliseconds."""
    keys = [f"p{percent:g}_{name}_ms" for percent in PERCENTILES]
    if len(values_s) == 0:
        return dict.fromkeys((f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms", *keys))
    mean, variance = mean_and_variance(values_s, counts)
    median, *values = weighted_percentiles(values_s, counts, (50.0, *PERCENTILES))
    result: dict[str, float | None] = {
        f"mean_{name}_ms": mean * 1e3,
        f"median_{name}_ms": median * 1e3,
        f"std_{name}_ms": variance**0.5 * 1e3,
    }
    return result | {key: value * 1e3 for key, value in zip(keys, values, strict=True)}


def _class_summary(of: SloClass, measured: Requests, ended: Requests, duration_s: float) -> ByName:
    """Metrics of one class; its goodput is the good share of its requests that `ended`, per second."""
    requests = measured.kept(measured.column("slo_class") == of.name)
    finished = finished_of(requests)
    good = slo_shares(finished, of.bounds_ms).get("all")
    num_ended = int(np.count_nonzero(ended.column("slo_class") == of.name))
    ttfts_s = latencies_s(finished)["ttft"]
    return {
        "num_prompts": len(requests),
        "completed": len(finished),
        "slo_attainment": good,
        "request_goodput": None if good is None else _ratio(good * num_ended, duration_s),
        "mean_ttft_ms": 1e3 * float(ttfts_s.mean()) if len(finished) else None,
    }


def measured_requests(record: RunRecord, num_warmups: int, num_cooldowns: int) -> Requests:
    index, last = record.requests.column("index"), len(record.requests) - num_cooldowns
    return record.requests.kept((num_warmups <= index) & (index < last))


def finished_of(requests: Requests) -> Requests:
    return requests.kept(requests.column("emitted_tokens") >= requests.column("output_tokens"))


def slo_shares(finished: Sequence[Request], slo_ms: Mapping[str, float | None]) -> dict[str, int | float | None]:
    """Share of the finished requests that meet each SLO given, and `all`. A single token has no TPOT to miss."""
    bounds = {name: bound for name, bound in slo_ms.items() if bound is not None}
    if not bounds:
        return {}
    arrival, first, last, tokens = _columns(finished)
    values_ms = {
        "ttft_ms": (first - arrival) * 1e3,
        "tpot_ms": (last - first) * 1e3 / np.maximum(1, tokens - 1),
        "e2el_ms": (last - arrival) * 1e3,
    }
    met = {name: values_ms[name] <= bound for name, bound in bounds.items()}
    met["all"] = np.logical_and.reduce([*met.values()])
    return {name: float(is_met.mean()) if len(finished) else None for name, is_met in met.items()}


def _steady_throughput(record: RunRecord, measured: Requests) -> float | None:
    """Output tokens per second between the first measured arrival and the last one; in an open loop until all have
    drained, where that is more. None where all arrive at once.

    `output_throughput`, as vLLM defines it, counts the drain as well, and so is lower than what a longer run shows.
    Tokens count when they come out: by requests that end, the slower policy would seem to serve less (report 002).
    """
    if len(measured) < 2:
        return None
    arrivals_s = measured.column("arrival_s")
    start_s, end_s = float(arrivals_s[0]), min(float(arrivals_s[-1]), record.end_s)
    if end_s <= start_s:
        return None
    ends_s = (end_s, record.end_s) if record.is_open_loop else (end_s,)
    return max(_emitted(record.requests, start_s, stop_s) / (stop_s - start_s) for stop_s in ends_s)


def _emitted(requests: Requests, start_s: float, end_s: float) -> float:
    """Tokens that came out in a stretch of time: the first of each request when it did, the others evenly up to its
    last."""
    _, first, last, tokens = _columns(requests.kept(requests.column("emitted_tokens") > 0))
    is_in = (start_s < first) & (first <= end_s)
    part = np.clip(np.minimum(last, end_s) - np.maximum(first, start_s), 0.0, None)
    part /= np.where(last > first, last - first, 1.0)
    return float(np.sum(is_in) + np.sum((tokens - 1) * np.where(last > first, part, is_in)))


def prefix_cache(record: RunRecord, measured: Requests) -> dict[str, float | None]:
    """Prefix-cache hits of prompts when they were first seated: tokens, and their share of all tokens, as vLLM counts.
    None where there is no prefix cache."""
    if record.cache_block_tokens is None:
        return {"prefix_cache_hit_tokens": None, "prefix_cache_hit_rate": None}
    seated = measured.kept(~np.isnan(measured.column("scheduled_s")))
    tokens = _total(seated, "cached_tokens")
    return {"prefix_cache_hit_tokens": tokens, "prefix_cache_hit_rate": _ratio(tokens, _total(seated, "prompt_tokens"))}


def _speculation(record: RunRecord, measured: Requests) -> dict[str, float | None]:
    """vLLM's spec_decode keys: counted before outputs are cut, the last draft not shortened; rate in percent."""
    names = ("num_rounds", "drafted_tokens", "accepted_tokens")
    drafts, drafted, accepted = [_total(measured, name) for name in names]
    return {
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_acceptance_length": 1.0 + accepted / drafts if drafts else None,
        "spec_decode_acceptance_rate": 100.0 * accepted / drafted if drafted else None,
        "rejected_token_share": _rejected_share(record),
    }


def _rejected_share(record: RunRecord) -> float | None:
    """Share of the whole run's device time spent on tokens that verify rejected: draft time by the rejected share of
    drafted tokens, verify and step time by rejected tokens among all positions computed in such works."""
    drafted = _total(record.requests, "drafted_tokens")
    rejected = drafted - _total(record.requests, "accepted_tokens")
    total_s = sum(usage.device_s for usage in record.usage)
    if not drafted or total_s <= 0.0:
        return None
    wasted_s = sum(usage.device_s * rejected / drafted for usage in record.usage if usage.kind == "draft")
    checked = [usage for usage in record.usage if usage.kind in ("verify", "step")]
    tokens = sum(usage.tokens for usage in checked)
    if tokens:
        wasted_s += sum(usage.device_s for usage in checked) * min(1.0, rejected / tokens)
    return wasted_s / total_s


def _device(record: RunRecord, duration_s: float) -> Run:
    by_stream, by_kind, num_works = defaultdict[str, float](float), defaultdict[str, float](float), Counter[str]()
    for usage in record.usage:
        by_stream[usage.stream] += usage.device_s
        by_kind[usage.kind] += usage.device_s
        num_works[usage.kind] += usage.num_works
    end_s = record.end_s
    return {
        "num_works": dict(num_works),
        "device_utilization": _ratio(record.device_busy_s, end_s),
        "device_idle_share": 1.0 - record.device_busy_s / end_s if end_s > 0.0 else None,
        "stream_utilization": {name: _ratio(busy_s, end_s) for name, busy_s in by_stream.items()},
        "kind_utilization": {name: _ratio(busy_s, end_s) for name, busy_s in by_kind.items()},
        "poll_cpu_share": _ratio(record.num_polls * POLL_CPU_S, end_s),
        "mean_queue_depth": record.queue_mean,
        "max_queue_depth": record.queue_peak,
        "mean_kv_usage": _ratio(record.kv_tokens_mean, record.kv_capacity_tokens),
        "max_kv_usage": _ratio(record.kv_tokens_peak, record.kv_capacity_tokens),
        "weight_gb": record.weight_bytes / 1e9,
        "max_kv_gb": record.kv_tokens_peak * record.kv_bytes_per_token / 1e9,
    }
