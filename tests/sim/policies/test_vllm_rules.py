"""vLLM's rules of admission, memory and budget are the same in both loops: rows as totals, and the plain loop, which a
cut window takes."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

from sim.costs.profile_files import load
from sim.interface.request import Request
from sim.metrics.records import RunRecord
from sim.run.resolve import resolve
from sim.run.scenario import Scenario
from sim.run.simulate import simulate

PAIR = "h100-sxm/llama-2-7b+tinyllama-1.1b"
EAGLE = "h100-sxm/llama-3.1-8b+eagle3"
BLOCK = 16


def requests(seed: int, *, is_sharing: bool) -> list[Request]:
    """Forty, short ones among them; where they share, a text of up to six blocks that some answers go on with."""
    draw, made, at_s = random.Random(seed), [], 0.0
    for index in range(40):
        prompt = draw.choice((1, 17, 33, draw.randint(2, 120)))
        output, content = draw.randint(1, 60), ()
        if is_sharing:
            shared = min(draw.randint(0, 6), (prompt + output) // BLOCK)
            own = max(0, prompt // BLOCK - shared)
            content = (*range(shared), *range(1000 * index + 100, 1000 * index + 100 + own))
        made.append(Request(index, f"r{index}", at_s, prompt, output, content))
        at_s += draw.choice((0.0, 0.001, 0.02))
    return made


def served(engine: str, profile: str, seed: int, changes: dict[str, Any], *, is_sharing: bool) -> list[RunRecord]:
    """The lazy account, and the plain loop."""
    common = {"engine": engine, "request_rate": 1, "num_prompts": 40, "engine.max_num_seqs": 8} | changes
    found = []
    for window in ({}, {"window.stop_s": 1e6}):
        given = Scenario.of(profile=profile, policy="continuous", **common, **window)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resolved = resolve(given, load(profile), "continuous")
            found.append(simulate(resolved, seed, requests=requests(seed, is_sharing=is_sharing)))
    return found


@pytest.mark.parametrize("engine", ["vllm-0.12", "vllm-0.23", "vllm-0.24", "vllm-0.32"])
@pytest.mark.parametrize("is_sharing", [False, True])
@pytest.mark.parametrize(
    ("profile", "changes"),
    [
        (PAIR, {"num_speculative_tokens": 0}),
        (PAIR, {"num_speculative_tokens": 3}),
        (PAIR, {"num_speculative_tokens": 2, "engine.async_scheduling": False}),
        (EAGLE, {"num_speculative_tokens": 2, "engine.max_num_batched_tokens": 64}),
    ],
)
@pytest.mark.parametrize("num_blocks", [16, 60])
def test_rows_as_totals_decide_as_the_plain_loop_does(
    engine: str, is_sharing: bool, profile: str, changes: dict[str, Any], num_blocks: int
) -> None:
    for seed in range(2):
        given = {"engine.num_gpu_blocks": num_blocks, "engine.max_num_batched_tokens": 96} | changes
        lazy, plain = served(engine, profile, seed, given, is_sharing=is_sharing)
        for ours, theirs in zip(lazy.requests, plain.requests, strict=True):
            for name in ("scheduled_s", "first_token_s", "last_token_s"):
                assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-9), (ours.index, name)
            for name in ("num_preemptions", "cached_tokens", "num_rounds", "accepted_tokens"):
                assert getattr(ours, name) == getattr(theirs, name), (ours.index, name)
