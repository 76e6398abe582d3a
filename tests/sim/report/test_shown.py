"""Answers of Python: sentence, print, Jupyter and frame of each; numpy's numbers are taken."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lanesim
from tests.properties import assert_refused

TINY: dict[str, Any] = {"profile": "cpu/tiny", "num_prompts": 20}
ASKS: dict[str, Any] = {"rate": 1, "input_len": 64, "output_len": 8}
SHORT: dict[str, Any] = {"concurrencies": (1, 4), "draws": 2, "workers": 1}


def tiny_plan(**asked: Any) -> Any:
    return lanesim.plan("cpu/tiny", **asked)


ASKED: dict[str, tuple[Callable[..., Any], dict[str, Any], list[str]]] = {
    "compare": (
        lanesim.compare,
        TINY | {"policy": ("pd", "continuous"), "request_rate": 5, "draws": 0},
        ["policy", "mean_e2el_ms"],
    ),
    "vary": (
        lanesim.compare,
        TINY | {"vary": {"request_rate": np.array([2, 4]), "max_num_seqs": [1, 8]}, "draws": 0},
        ["request_rate", "policy", "mean_e2el_ms"],
    ),
    "tune": (lanesim.tune, TINY | SHORT | {"lengths": np.array([0, 2])}, ["concurrency", "answer", "speedup"]),
    "contexts": (
        lanesim.tune,
        SHORT | {"profile": "cpu/tiny", "output_len": 8, "contexts": ["64", np.int64(128)], "lengths": (0, 2)},
        ["prompt_tokens", "regret"],
    ),
    "capacity": (
        lanesim.capacity,
        TINY
        | {"policy": "continuous", "num_speculative_tokens": np.int64(0), "goodput": {"ttft_ms": np.float64(100)}}
        | {"draws": 0, "workers": 1},
        ["policy", "load", "draws_low"],
    ),
    "plan": (
        tiny_plan,
        ASKS | {"input_len": np.int64(64), "goodput": {"ttft": 1000}, "draws": 2},
        ["deployment", "rate_per_replica"],
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_answer_has_a_sentence_shows_itself_and_is_a_frame(name: str) -> None:
    ask, given, columns = ASKED[name]
    answer = ask(**given)
    assert answer.sentence
    assert " ".join(str(answer).split()).startswith(" ".join(answer.sentence.split()))
    assert "<pre" in answer._repr_html_()
    texts: list[str] = []
    answer._repr_pretty_(SimpleNamespace(text=texts.append), False)
    assert texts == [str(answer)]
    frame = answer.frame()
    assert len(frame) >= 1
    assert [column for column in columns if column not in frame] == []


@pytest.mark.parametrize(
    ("ask", "given", "named"),
    [
        (tiny_plan, ASKS | {"goodput": {"ttft": 1000}, "gpu_name": "h200"}, "keyword 'gpu_name'"),
        (tiny_plan, ASKS | {"goodput": {}}, "no limit on latency is given"),
        (lambda: lanesim.validate_url("http://localhost:1", rate=4), {}, "'rate'. Did you mean 'request_rate'"),
        (lanesim.capacity, TINY | {"goodput": {"ttft_ms": 100}, "attainment": 2.0}, "attainment"),
        (lanesim.compare, TINY | {"vary": "gpu"}, "vary='gpu' must be a mapping"),
    ],
)
def test_doors_refuse_what_the_commands_refuse(ask: Callable[..., object], given: dict[str, Any], named: str) -> None:
    assert_refused(lambda: ask(**given), named)


def test_in_a_notebook_a_comparison_shows_its_tables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing displays itself by the way, which would need IPython. rich knows a notebook by this name."""
    monkeypatch.setattr(builtins, "get_ipython", type("ZMQInteractiveShell", (), {}), raising=False)
    found = lanesim.compare(**TINY, policy=("baseline", "pd"), request_rate=5)
    assert found._repr_html_().count("first token") == str(found).count("first token") > 0


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "lanesim", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("lanesim, version ")


def test_an_acceptance_that_is_assumed_in_python_is_a_note() -> None:
    few: dict[str, Any] = {"profile": "cpu/tiny", "num_prompts": 5, "request_rate": 5, "draws": 0, "replications": 1}
    asked = [{"policy": "pd"}, {"policy": "pd", "acceptance": "iid:0.6"}, {"policy": "autoregressive"}]
    notes = [" ".join(lanesim.compare(**few, **each).notes) for each in asked]
    assert ["Acceptance of drafts is assumed: iid:0.7" in each for each in notes] == [True, False, False]
