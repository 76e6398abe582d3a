"""Turns and forks of a session: what their prompts and answers have in common."""

from __future__ import annotations

import numpy as np

from sim.interface.request_columns import Requests
from sim.workload.sessions import Sessions, Sharing, requests_of

BLOCK = 16


def arrivals(num_turns: int, num_forks: int) -> Requests:
    """One session after a system prompt of 32 tokens: every turn says 48 tokens and is answered with 64."""
    answered = np.full((1, num_turns, num_forks), 64)
    sessions = Sessions(np.zeros(1), np.zeros(1, int), np.full((1, num_turns), 48), answered)
    sharing = Sharing(prefix_len=32, num_turns=num_turns, num_forks=num_forks)
    return requests_of(sessions, sharing, num_turns * num_forks, BLOCK)


def test_a_session_goes_on_from_its_first_fork_alone() -> None:
    """5 blocks of the first prompt; with 4 of the first answer and 3 of what is said next it is the second prompt."""
    first, second, *later = arrivals(2, 2)
    assert [each.prompt_tokens for each in later] == [32 + 48 + 64 + 48] * 2
    assert len(first.content) == 5 + 4
    assert len(second.content) == 5
    assert set(first.content) & set(second.content) == set(second.content)
    assert all(each.content[: len(first.content)] == first.content for each in later)
