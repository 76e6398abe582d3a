"""A comparison shows its tables once, whoever asks: print, a notebook, IPython in a terminal."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from typing import Any

import pytest

import lanesim
from sim.cli.main import run


class ZMQInteractiveShell:
    """What rich takes for a notebook, by its name."""


def comparison() -> lanesim.Comparison:
    return lanesim.compare(profile="cpu/tiny", policy=("baseline", "pd"), num_prompts=4, request_rate=5)


def test_in_a_notebook_a_comparison_shows_its_tables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing displays itself by the way, which would need IPython."""
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    found = comparison()
    assert found._repr_html_().count("p99 ms") == str(found).count("p99 ms") > 0


def test_ipython_shows_the_tables_in_place_of_every_field() -> None:
    class Printer:
        shown = ""

        def text(self, part: str) -> None:
            self.shown += part

    found, printer = comparison(), Printer()
    show: Callable[[Any, bool], None] = found._repr_pretty_
    show(printer, False)
    assert printer.shown == str(found)


def test_tune_takes_the_policy_and_the_longest_draft_as_the_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--profile", "cpu/tiny", "--set", "workload.num_prompts=8", "--lengths", "0,2", "--concurrencies", "1,4"]
    assert run(["tune", *given, "--draws", "2", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = lanesim.tune(profile="cpu/tiny", num_prompts=8, lengths=[0, 2], concurrencies=[1, 4], draws=2, workers=1)
    assert found.scenario["policy"] == told["scenario"]["policy"] == ["continuous"]
    assert found.scenario["speculation"]["num_speculative_tokens"] == 2
    assert [point.speedup for point in found.points] == [point["speedup"] for point in told["points"]]
    source = {"profile": "cpu/tiny", "policy": "autoregressive"}
    with pytest.raises(ValueError, match="autoregressive"):
        lanesim.tune(source, lengths=[2], concurrencies=[1], draws=2, workers=1)
