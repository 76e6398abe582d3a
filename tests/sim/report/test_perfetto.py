"""Recorded works: lanes' waiting counts, traces that open."""

from __future__ import annotations

import json

from sim.compare.side_by_side import compare
from sim.costs.profile_files import load
from sim.metrics.records import RunRecord
from sim.report.perfetto import recorded_runs, trace_json, waiting_by_lane
from sim.run.resolve import resolve, resolve_all
from sim.run.scenario import Scenario, parse_scenario
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def recorded(policy: str) -> object:
    workload = {"input_len": 300, "output_len": 30, "num_prompts": 15, "request_rate": 8}
    scenario = parse_scenario({"profile": PAIR, "policy": policy, "workload": workload})
    return simulate(resolve(scenario, load(PAIR), policy), 0, record_works=True)


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


def test_works_are_recorded_until_the_first_hundred_requests_have_ended() -> None:
    given = Scenario.of(profile=PAIR, policy="pd", num_prompts=130, num_warmups=5, request_rate=8.0, output_len=5)
    records: list[RunRecord] = []
    compare(resolve_all(given, load(PAIR)), on_run=records.append, record_works=True, workers=1)
    shown = records[0].requests[5:105]
    assert max(work.ready_s for work in records[0].works) < records[0].end_s
    assert {index for work in records[0].works for index in work.requests} >= {request.index for request in shown}
