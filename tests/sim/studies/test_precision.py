"""As many replications as narrow intervals take, from a pilot that the fresh ones share nothing with."""

from __future__ import annotations

import json

import msgspec
import pytest

from sim.cli.main import run
from sim.compare.side_by_side import compare
from sim.costs.profile_files import load
from sim.metrics.stats import t_975
from sim.run.scenario import Scenario
from sim.studies.precision import METRICS, replications_for, sized, wider_than

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"


def scenario(**changes: object) -> Scenario:
    made = {"profile": PAIR, "policy": ("pd", "continuous"), "num_prompts": 60, "request_rate": 8, **changes}
    return Scenario.of(**made, input_len=128, output_len=24)


def test_the_number_is_the_least_whose_interval_is_narrow_enough() -> None:
    values, share = [8.0, 9.0, 10.0, 11.0, 12.0], 0.05
    count = replications_for(values, share)
    spread = 2.5**0.5
    assert t_975(count - 1) * spread / count**0.5 <= share * 10.0
    assert t_975(count - 2) * spread / (count - 1) ** 0.5 > share * 10.0


def test_fresh_replications_are_as_narrow_as_asked_for() -> None:
    """Or nearly: the spread of a pilot is a guess. One seed, 10 %, 1.5 times that allowed."""
    one = sized(scenario(), load(PAIR), 0.1, workers=1)
    assert one.replications > 2
    result = compare(one, load(PAIR), workers=1)
    for row in result.policies:
        for metric in METRICS:
            interval, mean = row.ci95[metric], row.mean[metric]
            assert interval is not None
            assert mean is not None
            assert (interval[1] - interval[0]) / 2.0 <= 0.15 * mean


def test_a_wider_share_takes_fewer() -> None:
    profile = load(PAIR)
    narrow, wide = (sized(scenario(), profile, share, workers=1).replications for share in (0.1, 0.3))
    assert wide < narrow


def test_runs_grow_where_too_many_replications_would_be_needed() -> None:
    one = sized(scenario(num_prompts=20), load(PAIR), 0.01, workers=1)
    assert one.replications == 64
    assert isinstance(one.workload.num_prompts, int)
    assert one.workload.num_prompts > 20


def test_what_stays_wider_and_what_has_no_steady_mean_is_told() -> None:
    result = compare(msgspec.structs.replace(scenario(), replications=2), load(PAIR), workers=1)
    assert any("pilot saw less spread" in line for line in wider_than(result, 0.001))
    burst = compare(scenario(request_rate=float("inf")), load(PAIR), workers=1)
    assert [("burst" in line) for line in wider_than(burst, 0.5)] == [True, True]


def test_the_command_makes_that_many(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--input-len", "128", "--output-len", "24", "--num-prompts", "40", "--request-rate", "8", "--workers", "1"]
    assert run(["compare", "--profile", PAIR, "--policy", "pd", *flags, "--until-ci", "0.3", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scenario"]["replications"] == len(result["runs"]) >= 2
    assert run(["compare", "--profile", PAIR, "--policy", "pd", *flags, "--until-ci", "2"]) == 2
    assert "--until-ci': 2.0 is not in the range" in capsys.readouterr().err
