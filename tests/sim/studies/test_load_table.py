"""Which policy at which load: choices on figures made by hand, and one small table from real runs."""

from __future__ import annotations

import json

import pytest

from sim.cli.main import run
from sim.costs.profile_files import load
from sim.devices.contention import BRACKET, PhiLevel
from sim.policies.adaptive import AdaptiveOptions
from sim.policies.choices import row_for
from sim.run.scenario import Scenario
from sim.studies.load_table import Figures, between, choices, is_surely_better, table_of, tune_policies


def at(**values: float | tuple[float, float, float]) -> Figures:
    """Figures of policies at one concurrency: one for all phi, or from least to most overlap; four draws, 1 % apart."""
    spread = (0.99, 1.0, 1.0, 1.01)
    by_level = {name: value if isinstance(value, tuple) else (value,) * 3 for name, value in values.items()}
    return {
        name: {level: [value * each for each in spread] for level, value in zip(BRACKET, own, strict=True)}
        for name, own in by_level.items()
    }


def test_a_policy_stays_until_another_is_surely_better_and_then_that_one_stays() -> None:
    figures = [
        at(pd=100.0, unified=100.5),
        at(pd=200.0, unified=210.0),
        at(pd=300.0, unified=300.0),
        at(pd=400.0, unified=380.0),
    ]
    assert choices(figures, ("pd", "unified")) == ["pd", "unified", "unified", "pd"]


def test_better_at_two_phi_of_three_is_not_surely_better() -> None:
    found = at(pd=100.0, unified=(100.0, 110.0, 130.0), pdv=(102.0, 104.0, 106.0))
    assert not is_surely_better(found["unified"], found["pd"])
    assert is_surely_better(found["pdv"], found["pd"])
    assert choices([found], ("pd", "unified", "pdv")) == ["pdv"]


def test_a_gain_within_its_own_scatter_is_none() -> None:
    theirs = {PhiLevel.MIDDLE: [100.0, 100.0, 100.0, 100.0]}
    assert not is_surely_better({PhiLevel.MIDDLE: [130.0, 90.0, 110.0, 90.0]}, theirs)
    assert is_surely_better({PhiLevel.MIDDLE: [106.0, 104.0, 106.0, 104.0]}, theirs)


def test_concurrencies_are_added_where_neighbours_differ_until_they_are_close() -> None:
    assert between((1, 8, 16, 64), ("pd", "pd", "unified", "unified")) == [11]
    assert between((8, 11, 16), ("pd", "pd", "unified")) == [13]
    assert between((11, 13), ("pd", "unified")) == []
    assert between((1, 2), ("pd", "unified")) == []


def test_a_row_is_left_only_at_a_load_at_which_the_other_policy_was_better() -> None:
    tried, chosen = (1, 16, 20, 50, 64), ("pd", "pd", "unified", "unified", "pdv")
    table, hysteresis = table_of(tried, chosen)
    AdaptiveOptions(adaptive_table=table)
    row = 0
    for load_, policy in [
        (19, "pd"),
        (21, "unified"),
        (17, "unified"),
        (15, "pd"),
        (64, "pdv"),
        (51, "pdv"),
        (49, "unified"),
    ]:
        row = row_for(table, load_, row, hysteresis)
        assert table[row][1] == policy, load_


def test_one_draw_is_too_few_and_so_is_a_short_run() -> None:
    scenario = Scenario.of(profile="cpu/tiny", policy="adaptive", num_prompts=31)
    with pytest.raises(ValueError, match="draws=1 must be at least 2"):
        tune_policies(scenario, load("cpu/tiny"), draws=1)
    with pytest.raises(ValueError, match="want at least 32, or auto"):
        tune_policies(scenario, load("cpu/tiny"), concurrencies=[1, 4])


def test_the_command_prints_what_a_scenario_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """On an engine that handles one request at a time workers of their own are as good as lanes: one row."""
    arguments = [
        "tune",
        "--policy",
        "adaptive",
        "--profile",
        "cpu/tiny",
        "--set",
        "workload.num_prompts=32",
        "--draws",
        "2",
    ]
    small = ["--concurrencies", "1,4", "--json", "-"]
    assert run([*arguments, *small]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["points"][0]["concurrency"] == 1
    assert found["adaptive_table"][0] == [1, found["points"][0]["policy"]]
    chosen = Scenario.of(
        profile="cpu/tiny",
        policy="adaptive",
        **{"policy_options.adaptive_table": found["adaptive_table"], "policy_options.hysteresis": found["hysteresis"]},
    )
    assert chosen.policy_options.hysteresis == found["hysteresis"]
