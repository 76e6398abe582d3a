"""The reports' feedback controller on recorded acceptance: it settles and follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest

from sim.engine.draft_length import ROUNDS_PER_DECISION, Feedback

FRESH = (0.8607, 0.7369, 0.6297, 0.5376, 0.4607, 0.4042, 0.3589)
LATE = (0.5700, 0.4229, 0.3201, 0.2560, 0.2064, 0.1675, 0.1365)
"""Share of rounds that accept at least so many of seven tokens, DSpark on Qwen3-4B with fresh features and with
features a round late. Source: Future-Outlier/speculative-decoding-benchmark @ 1b1e05b (MIT), results/s1."""


def rounds_of(rates: Sequence[float], seed: int) -> Iterator[int]:
    """Accepted of seven drafted tokens, round after round, by such shares."""
    draws = np.random.default_rng(seed).random(100_000)
    return iter((draws[:, None] < rates).sum(axis=1).tolist())


def lengths(controller: Feedback, rounds: Iterator[int], num_decisions: int, queue: int = 0) -> list[int]:
    """The draft length after each decision; a draft of k accepts the first k at most of what was recorded."""
    found = []
    for _ in range(num_decisions):
        for _ in range(ROUNDS_PER_DECISION):
            drafted = controller.length_for(1)
            controller.saw_draft(0.010, queue)
            controller.saw_round(drafted, min(drafted, next(rounds)))
        found.append(controller.length_for(1))
    return found


def turns(found: Sequence[int]) -> int:
    """Times that it goes up after down or down after up."""
    steps = [later - earlier for earlier, later in pairwise(found) if later != earlier]
    return sum(one * other < 0 for one, other in pairwise(steps))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rates", [FRESH, LATE])
def test_on_published_acceptance_it_comes_to_rest(rates: tuple[float, ...], seed: int) -> None:
    found = lengths(Feedback(4), rounds_of(rates, seed), 300)
    assert turns(found) == 0
    assert len(set(found[-80:])) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_it_follows_acceptance_down_and_up_again(seed: int) -> None:
    """From nearly everything accepted to the late features' share and back."""
    always = (0.99,) * 8
    controller = Feedback(4)
    assert lengths(controller, rounds_of(always, seed), 20)[-1] == 8
    assert lengths(controller, rounds_of(LATE, seed), 60)[-1] <= 4
    assert lengths(controller, rounds_of(always, seed), 60)[-1] == 8
