"""The served workload: answers cut at the context, prompts without room for one rejected, and from every command the
figures of a workload that was sent so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.cli.main import run
from sim.compare.capacity import Capacity, Saturation, load_of
from sim.costs.profile_files import load
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.studies.attainment import highest_load
from sim.studies.serve_commands import deployment
from sim.workload.generate import TraceArrivals, Workload, build_requests
from sim.workload.served import SAMPLE, Served
from sim.workload.sessions import Sharing

PROFILE = "h100-sxm/llama-3.1-8b"
PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
CONTEXT = 1000
SLO = {"goodput.ttft_ms": 5000.0, "goodput.tpot_ms": 100.0}


def scenario(**changes: Any) -> Scenario:
    given = {"profile": PROFILE, "policy": "autoregressive", "num_prompts": 60, "num_speculative_tokens": 0, "seed": 3}
    return Scenario.of(**given | {"engine.max_model_len": CONTEXT} | changes)


def trace(path: Path, *lengths: tuple[int, int]) -> Workload:
    """Requests a second apart."""
    rows = [f"{second},{prompt},{output}" for second, (prompt, output) in enumerate(lengths)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return Workload(dataset_name="csv", dataset_path=str(path), trace_arrivals=TraceArrivals.RECORDED)


CUT = {"input_len": 900, "output_len": 500}
"""Requests whose answers are cut."""


def mixed(path: Path, rejected: bool) -> dict[str, Any]:
    """A trace, every third request of which is rejected, or lacks them."""
    count = 240
    rows = [(1000, 50) if i % 3 == 0 else (200, 50) for i in range(count)]
    sent = trace(path / f"{rejected}.csv", *(row for row in rows if rejected or row[0] < CONTEXT))
    return {"dataset_name": "csv", "dataset_path": sent.dataset_path, "num_prompts": "auto", "request_rate": 1.0}


def test_the_context_ends_answers_and_rejects_prompts_that_leave_no_room_for_one(tmp_path: Path) -> None:
    """Requests that follow a rejected one keep their names, and count on without it."""
    workload = trace(tmp_path / "t.csv", (999, 5), (1000, 5), (1001, 5), (900, 100), (900, 101), (1, 1))
    found = Served(workload, CONTEXT).requests(0)
    lengths = [(each.prompt_tokens, each.output_tokens) for each in found.requests]
    assert lengths == [(999, 1), (900, 100), (900, 100), (1, 1)]
    assert [(each.index, each.arrival_s) for each in found.requests] == [(0, 0.0), (1, 3.0), (2, 4.0), (3, 5.0)]
    assert [each.id for each in found.requests] == [build_requests(workload, 0)[place].id for place in (0, 3, 4, 5)]
    assert (found.num_cut, found.num_rejected, found.served_share) == (2, 2, 4 / 6)
    assert Served(workload, CONTEXT).requests(0, end_s=2.0).num_rejected == 2
    assert Served(workload, CONTEXT).requests(0, end_s=1.0)[1:] == (1, 1)
    first_rejected = trace(tmp_path / "r.csv", (1000, 5), (1, 1))
    assert Served(first_rejected, CONTEXT).requests(0, end_s=0.5)[1:] == (0, 1)
    assert len(Served(workload).requests(0).requests) == 6
    whole = Served(workload, CONTEXT, ends_answers=False).requests(0).requests
    assert [each.prompt_tokens + each.output_tokens for each in whole] == [1000, 2]


def test_means_are_of_what_is_served_and_rejected_requests_yield_nothing(tmp_path: Path) -> None:
    mean = Served(trace(tmp_path / "t.csv", (999, 5), (1000, 5), (401, 3), (1000, 9)), CONTEXT).mean_tokens(0)
    assert mean == (700.0, 2.0, 0.5)
    assert mean.output_per_sent == 1.0


def test_turns_that_outgrow_the_context_are_rejected() -> None:
    """Prompts of 300, 700 and 1,100 tokens."""
    talk = Workload(input_len=300, output_len=100, dataset_name="fixed", num_prompts=90)
    talk = msgspec.structs.replace(talk, sharing=Sharing(num_turns=3, turn_gap_s=0.1))
    found = Served(talk, CONTEXT).requests(0)
    assert {each.prompt_tokens for each in found.requests} == {300, 700}
    assert found.num_rejected == sum(each.prompt_tokens > 1000 for each in build_requests(talk, 0)) > 20
    assert Served(talk, CONTEXT).mean_tokens(0).served_share == pytest.approx(2 / 3, abs=0.01)


def test_a_sample_goes_on_where_the_first_requests_are_rejected(tmp_path: Path) -> None:
    late = trace(tmp_path / "t.csv", *[(CONTEXT, 1)] * SAMPLE, (10, 1))
    assert [each.prompt_tokens for each in Served(late, CONTEXT).sample(0).requests] == [10]


@pytest.mark.parametrize("command", ["compare", "plan", "tune"])
def test_requests_that_are_all_rejected_are_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--profile", PAIR, "--set", "policy=continuous", "--input-len", "4096"]
    assert run([command, *args, *(["--goodput", "ttft:5000"] if command == "plan" else [])]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "every request is rejected: the shortest prompt has 4096 tokens, and a prompt and its answer have" in line


def test_rejected_requests_are_in_the_json_of_a_run_and_in_one_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = trace(tmp_path / "t.csv", (200, 3), (4096, 3), (200, 9), (4200, 3))
    args = ["--profile", PAIR, "--policy", "pd", "--policy", "pdv", "--set", "workload.dataset_name=csv"]
    assert run(["compare", *args, "--set", f"workload.dataset_path={sent.dataset_path}", "--json", "-"]) == 0
    printed = capsys.readouterr()
    for one in json.loads(printed.out)["runs"]:
        assert (one["num_prompts"], one["completed"], one["censored"], one["rejected_requests"]) == (2, 2, 0, 2)
    (line,) = [line for line in printed.err.splitlines() if "are rejected" in line]
    assert "2 of 4 requests are rejected: prompts of 4096 tokens or more leave no room for an answer in" in line


# -- twins: the same work, sent as it is served


def capacity(given: Scenario) -> Capacity:
    return Saturation(resolve(given, load(given.profile), "autoregressive")).capacity


def test_capacity_counts_the_requests_that_are_sent(tmp_path: Path) -> None:
    """A third of them takes nothing."""
    (sent, _), (served, _) = (capacity(scenario(**mixed(tmp_path, rejected))) for rejected in (True, False))
    assert sent == pytest.approx(1.5 * served, rel=1e-9)


def test_the_load_of_a_trace_is_of_the_requests_that_are_sent(tmp_path: Path) -> None:
    """One a second."""
    for rejected in (True, False):
        given = scenario(**mixed(tmp_path, rejected))
        served = resolve(given, load(PROFILE), "autoregressive").served.requests(0).requests
        arrivals_s = [request.arrival_s for request in served]
        resolved = resolve(given, load(PROFILE), "autoregressive")
        found = load_of(resolved, is_in_doubt=False, arrivals_s=arrivals_s)
        assert found.rate_per_s == pytest.approx(1.0, rel=0.01)


def test_tokens_and_prices_of_a_rate_are_of_the_requests_among_it_that_are_served(tmp_path: Path) -> None:
    """Half as many requests again are sent at the highest load, and yield as many tokens."""
    loose = {"goodput.ttft_ms": 1e7}
    sent, served = (
        highest_load(
            scenario(**mixed(tmp_path, rejected), **loose),
            load(PROFILE),
            draws=0,
            price=3.6,
            near=1.0,
            workers=1,
        ).highest[0]
        for rejected in (True, False)
    )
    assert sent.load == pytest.approx(1.5 * (served.load or 0.0))
    assert sent.output_tokens_per_s == pytest.approx(served.output_tokens_per_s)
    assert sent.usd_per_million_tokens == pytest.approx(served.usd_per_million_tokens)


def test_the_line_of_the_server_has_the_longest_context_that_is_served() -> None:
    serve = deployment(scenario(**CUT), load(PROFILE), ((1, 1, 0),), {}).start
    assert f"--max-model-len {CONTEXT}" in serve
