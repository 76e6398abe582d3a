"""Engines whose own scheduler plans the steps: what an entry point gives, and what is refused. vLLM itself is compared
in validation.conformance, where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sim.costs.engine_costs import installed_engine
from sim.costs.profile_files import load
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
MINE = """
import lanesim

async def one_by_one(serving, limits, stream):
    while True:
        request = await serving.admit()
        await lanesim.rounds.submit_prefill(serving, request, stream)
        serving.commit_prefill(request)

def engine():
    return lanesim.InstalledEngine(label="mine 1.0, installed", like="vllm-0.24", serve=one_by_one)

def broken():
    raise ValueError("it is not there")

def wrong():
    return 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with entry points of its own is installed."""
    (tmp_path / "my_engine.py").write_text(MINE)
    (tmp_path / "mine-1.0.dist-info").mkdir()
    (tmp_path / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    lines = ["[lanesim.engines]", "mine = my_engine:engine", "broken = my_engine:broken", "wrong = my_engine:wrong"]
    (tmp_path / "mine-1.0.dist-info" / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    installed_engine.cache_clear()
    yield
    installed_engine.cache_clear()
    sys.modules.pop("my_engine", None)


def given(policy: str = "continuous", **changes: Any) -> Scenario:
    asked = {"engine": "mine", "num_prompts": 4, "request_rate": 9, "output_len": 1, "input_len": 32} | changes
    return Scenario.of(profile=PAIR, policy=policy, **asked)


@pytest.mark.usefixtures("mine")
def test_its_own_order_of_work_serves_and_the_record_says_whose_it_was() -> None:
    resolved = resolve(given(), load(PAIR), "continuous")
    record = simulate(resolved, 0, record_works=True)
    assert record.engine == "mine 1.0, installed"
    assert [work.requests for work in record.works if work.model == "target"] == [(0,), (1,), (2,), (3,)]
    assert {work.kind for work in record.works} >= {"prefill"}
    assert resolved.engine.step_s == resolve(given(engine="vllm-0.24"), load(PAIR), "continuous").engine.step_s


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (given("pd"), "policy 'pd' has its own order of work"),
        (given(**{"speculation.controller": "feedback"}), "speculation.controller=feedback must be fixed"),
        (given(engine="broken"), "engine 'broken': ValueError: it is not there"),
        (given(engine="wrong"), "engine 'wrong' gives 3. It must give a lanesim.InstalledEngine"),
        (given(engine="mime"), "Did you mean 'mine'"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(scenario: Scenario, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        resolve(scenario, load(PAIR), scenario.policy[0])
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="a vLLM is installed")
def test_without_a_vllm_beside_us_one_line_says_so() -> None:
    from realrun.installed.serving import vllm

    with pytest.raises(ValueError, match="no vLLM can be imported"):
        vllm()
