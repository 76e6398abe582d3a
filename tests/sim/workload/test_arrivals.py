"""When the requests of a trace arrive."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import numpy as np
import pytest

from sim.cli.main import run
from sim.run.scenario import Scenario
from sim.workload.generate import TraceArrivals, Workload, arrival_times, build_requests
from sim.workload.traces import rescaled
from tests.sim.workload.conftest import Write

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
2023-11-16 18:15:51.6805900,10,1
"""


def spec(path: str, **changes: Any) -> Workload:
    return Workload(dataset_name="trace-azure", dataset_path=path, num_prompts=3, **changes)


def test_arrivals_are_replayed_rescaled_or_drawn(write: Write) -> None:
    path = write(AZURE)

    def arrivals(how: str, **changes: Any) -> list[float]:
        requests = build_requests(spec(path, trace_arrivals=TraceArrivals(how), **changes), 0)
        assert [request.prompt_tokens for request in requests] == [374, 396, 10]
        return [request.arrival_s for request in requests]

    assert arrivals("recorded") == pytest.approx([0.0, 4.0, 5.0])
    assert arrivals("rescaled", request_rate=4.0) == pytest.approx([0.0, 0.4, 0.5])
    assert arrivals("rescaled", request_rate=inf) == [0.0, 0.0, 0.0]
    assert arrivals("poisson", request_rate=4.0) == arrival_times(3, 4.0, 1.0, 0).tolist()


def test_a_trace_without_a_clock_gets_drawn_arrivals(write: Write) -> None:
    path = write('[{"prompt_tokens": 5, "output_tokens": 7}]', "s.json")
    spec = Workload(dataset_name="sharegpt", dataset_path=path, num_prompts=1)
    assert [request.arrival_s for request in build_requests(spec, 0)] == arrival_times(1, 4.0, 1.0, 0).tolist()


def test_arrivals_all_at_once_have_no_shape_to_rescale() -> None:
    with pytest.raises(ValueError, match="all arrive at once"):
        rescaled(np.zeros(3), 4.0, "trace.csv")
    assert rescaled(np.zeros(1), 4.0, "trace.csv").tolist() == [0.0]


def test_concurrency_without_a_rate_is_a_closed_loop(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """As in `vllm bench serve`; a trace that is replayed has its recorded arrivals, which nobody gave a rate."""

    def workload(**keys: Any) -> Workload:
        return Scenario.of({"profile": "cpu/tiny", "policy": "pd", "workload": keys}).workload

    assert workload(max_concurrency=2).request_rate == inf
    assert workload(max_concurrency=2, request_rate=3).request_rate == 3.0
    assert workload().request_rate == workload(max_concurrency=None).request_rate == 4.0
    timed = {"dataset_name": "trace-azure", "dataset_path": write(AZURE), "max_concurrency": 2}
    assert workload(**timed).trace_arrivals is TraceArrivals.RECORDED
    assert workload(**timed, trace_arrivals="poisson").request_rate == inf
    flags = ["--profile", "cpu/tiny", "--policy", "pd", "--num-prompts", "4", "--max-concurrency", "2"]
    assert run(["compare", *flags, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["scenario"]["workload"]["request_rate"], found["runs"][0]["load"]) == ("inf", "closed")
