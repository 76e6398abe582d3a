"""Report 002's headline from one service-time profile: completions and rounds in its window by its engines' rules.

Arrivals are the harness's own: numpy's legacy generator at seed 42, exponential gaps, cut after 30 s.
"""

from __future__ import annotations

import numpy as np
import pytest

from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.scenario_file import read_scenario
from sim.run.simulate import simulate
from tests.sim.run.test_caps import SCENARIOS


def arrivals(concurrency: int) -> list[Request]:
    draws, requests, time_s = np.random.RandomState(42), [], 0.0
    while (time_s := time_s + draws.exponential(1.0 / (0.05 * concurrency))) < 30.0:
        index = len(requests)
        requests.append(Request(index, f"r{index}", arrival_s=time_s, prompt_tokens=30, output_tokens=21))
    return requests


def window(policy: str, concurrency: int, seed: int, **changes: object) -> tuple[int, int]:
    """(completed requests, rounds) within the window."""
    raw = read_scenario(SCENARIOS / "report-002-window.yaml")
    given = Scenario.of(
        raw,
        policy=policy,
        **{"policy_options.decode_batch": concurrency, "engine.max_num_seqs": concurrency, **changes},
    )
    record = simulate(resolve(given, load(given.profile), policy), seed, requests=arrivals(concurrency))
    done = sum(request.is_finished for request in record.requests)
    return done, sum(request.num_rounds for request in record.requests)


@pytest.mark.parametrize(
    ("concurrency", "arrived"), [(16, 28), (32, 52), (64, 105), (72, 116), (84, 136), (96, 154), (128, 203)]
)
def test_the_harness_saw_so_many_arrivals(concurrency: int, arrived: int) -> None:
    assert len(arrivals(concurrency)) == arrived


def test_admitting_all_at_once_finishes_one_and_admitting_one_per_loop_a_third_of_a_hundred() -> None:
    """C = 128, published: 1 against 29 to 34 of 203, 470 against 503 rounds."""
    pd = [window("pd", 128, seed) for seed in range(6)]
    unified = [window("unified", 128, seed) for seed in range(6)]
    assert all(done <= 2 for done, _ in pd)
    assert 29 <= np.mean([done for done, _ in unified]) <= 36
    assert np.mean([rounds for _, rounds in pd]) == pytest.approx(470, rel=0.05)
    assert np.mean([rounds for _, rounds in unified]) == pytest.approx(503, rel=0.05)


def test_both_finish_everything_where_the_load_is_within_capacity() -> None:
    assert window("pd", 16, 0)[0] == window("unified", 16, 0)[0] == 28


def test_the_overlapped_worker_is_not_the_seeds() -> None:
    """It takes prompts in all the time, so that they share the round-robin as under pd."""
    assert window("unified", 128, 0, **{"policy_options.pipelined": True})[0] < 20
