"""Where time goes: phases that add up, lanes' waiting counts, traces that open."""

from __future__ import annotations

import json

import pytest

from sim.compare.side_by_side import compare
from sim.costs.profile_files import load
from sim.metrics.breakdown import PHASES, mean_phases_s
from sim.metrics.records import RunRecord
from sim.policies.registry import POLICIES
from sim.report.perfetto import recorded_runs, trace_json, waiting_by_lane
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def recorded(policy: str) -> object:
    workload = {"input_len": 300, "output_len": 30, "num_prompts": 15, "request_rate": 8}
    scenario = parse_scenario({"profile": PAIR, "policy": policy, "workload": workload})
    return simulate(resolve(scenario, load(PAIR), policy), 0, record_works=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_phases_add_up_to_the_mean_latency(policy: str) -> None:
    record = recorded(policy)
    phases = mean_phases_s(record)
    mean_s = sum(r.last_token_s - r.arrival_s for r in record.requests) / len(record.requests)
    assert tuple(phases) == PHASES
    assert all(value >= 0.0 for value in phases.values())
    assert sum(phases.values()) == pytest.approx(mean_s, rel=1e-9)
    assert phases["verify"] > 0.0
    assert (phases["draft"] > 0.0) == (policy != "autoregressive")


def test_kv_over_time_starts_and_ends_empty_and_never_exceeds_its_peak() -> None:
    record = recorded("pdv")
    tokens = [value for _, value in record.kv_series]
    assert tokens[0] == 0
    assert max(tokens) == record.kv_tokens_peak
    assert all(a[0] < b[0] for a, b in zip(record.kv_series, record.kv_series[1:], strict=False))


def test_a_lane_counts_each_wait_once() -> None:
    changes = waiting_by_lane(recorded("pdv").works)
    for lane in ("decode", "verify"):
        assert sum(change for _, change in changes[lane]) == 0


def test_a_trace_names_streams_and_lanes_and_keeps_works_in_bounds() -> None:
    record = recorded("pdv")
    events = json.loads(trace_json(recorded_runs([record])))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"stream prefill", "stream decode", "stream verify"} <= names
    works = [event for event in events if event["ph"] == "X"]
    assert len(works) == len(record.works)
    assert all(event["dur"] >= 0 for event in works)
    waiting = [event["args"]["waiting"] for event in events if event["ph"] == "C"]
    assert min(waiting) == 0


def test_the_breakdown_is_of_the_runs_and_requests_that_the_table_is_of() -> None:
    given = Scenario.of(
        profile=PAIR, policy="pd", num_prompts=40, num_warmups=10, request_rate=1.0, replications=2, seed=3
    )
    records: list[RunRecord] = []
    first, second = compare(resolve_all(given, load(PAIR)), on_run=records.append, record_works=True, workers=1).runs
    assert isinstance(first["phases_ms"], dict)
    assert sum(first["phases_ms"].values()) == pytest.approx(first["mean_e2el_ms"])  # type: ignore[arg-type]
    assert second["phases_ms"] == dict.fromkeys(PHASES)
    assert [bool(record.works) for record in records] == [True, False]


def test_works_are_recorded_until_the_first_hundred_requests_have_ended() -> None:
    given = Scenario.of(profile=PAIR, policy="pd", num_prompts=130, num_warmups=5, request_rate=8.0, output_len=5)
    records: list[RunRecord] = []
    found = compare(resolve_all(given, load(PAIR)), on_run=records.append, record_works=True, workers=1)
    shown = records[0].requests[5:105]
    assert max(work.ready_s for work in records[0].works) < records[0].end_s
    assert {index for work in records[0].works for index in work.requests} >= {request.index for request in shown}
    phases_ms = found.runs[0]["phases_ms"]
    assert isinstance(phases_ms, dict)
    mean_s = sum(request.last_token_s - request.arrival_s for request in shown) / len(shown)
    assert sum(phases_ms.values()) == pytest.approx(1e3 * mean_s)  # type: ignore[arg-type]
