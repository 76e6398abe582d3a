"""What the tables of a comparison show where a metric is undefined."""

from __future__ import annotations

import re

import pytest

import lanesim
from sim.compare.capacity import Saturation
from sim.compare.side_by_side import Comparison
from sim.costs.profile_files import load
from sim.run.resolve import resolve
from tests.properties import printed


def in_full(result: Comparison) -> list[str]:
    return printed(result, 120, is_verbose=True).splitlines()


def test_output_of_a_burst_is_that_of_the_whole_run_in_both_tables() -> None:
    result = lanesim.compare(
        profile="cpu/tiny", policy=["pd", "baseline"], num_prompts=8, output_len=8, request_rate="inf", replications=1
    )
    pd, baseline = (run["output_throughput"] for run in result.runs)
    lines = in_full(result)
    place, cells = next(
        (at, line.split()) for at, line in enumerate(lines) if line.split()[:2] == ["output", "(tok/s)"]
    )
    assert cells[2:] == [f"{pd:.0f}", f"{baseline:.0f}"]
    assert lines[place + 1].split() == [f"{baseline - pd:.0f}"]


def test_a_run_that_drafts_nothing_has_no_draft_length_in_its_head() -> None:
    """Of one policy there is one run, and of several four, unless a scenario says how many."""
    policies = {
        "k=4, iid:0.7, 4 runs": ["autoregressive", "pd"],
        "no speculation, 1 run": ["autoregressive"],
    }
    for text, policy in policies.items():
        found = lanesim.compare(profile="cpu/tiny", policy=policy, num_prompts=4, output_len=4, request_rate=4)
        assert f"64 tokens in, 4 out, {text} each" in " ".join(" ".join(in_full(found)).split())


def test_the_share_that_meets_its_slos_is_said_to_be_of_the_finished_requests() -> None:
    """One of two requests is cut by the window's end, and the one that ended is within its bound."""
    result = lanesim.compare(
        profile="cpu/tiny",
        policy=["continuous"],
        num_prompts=2,
        output_len=8,
        request_rate="inf",
        max_concurrency=1,
        replications=1,
        goodput={"ttft_ms": 60000},
        window={"stop_s": 0.04},
    )
    (run,) = result.runs
    assert (run["completed"], run["censored"], run["slo_attainment"]["all"]) == (1, 1, 1.0)
    assert "of finished" in str(result)


@pytest.mark.parametrize(("share", "is_low"), [(0.5, False), (0.92, True)])
def test_a_p99_of_a_short_run_near_saturation_is_at_least_what_is_printed(share: float, is_low: bool) -> None:
    given = {"profile": "h100-sxm/llama-3.1-8b", "policy": ["autoregressive"], "input_len": 200, "output_len": 40}
    scenario = lanesim.Scenario.of(None, **given)
    per_s, _ = Saturation(resolve(scenario, load(scenario.profile), "autoregressive")).capacity
    result = lanesim.compare(**given, num_prompts=400, request_rate=share * per_s, replications=2, draws=0)
    (row,) = result.policies
    assert row.load.is_steady
    assert row.ci95["p99_e2el_ms"] is None
    tails = {key for key in row.mean if key.startswith("p99")}
    assert set(row.at_least) == (tails if is_low else set())
    assert bool(re.search(r"≥ \d", "".join(in_full(result)))) == is_low
