"""Requests that have prompts in common by the way they come about: system prompts, turns of a session, forks.

Every prompt begins with one of several system prompts. A session's next turn comes `turn_gap_s` after the last one,
answered or not, with all that was said before it, answers too. Each prompt may be asked several times at once, with
further answers (samples, branches of a search); a session goes on from the first. Not here: how long what is said
is, and when sessions begin (sim.workload.generate).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.draws import Floats, Integers
from sim.workload.content import Content

_STRIDE = 1 << 32
"""Content ids per system prompt and per session."""


class Sharing(NamedTuple):
    """Common content of prompts."""

    prefix_len: int = 0
    """Tokens of a system prompt."""
    num_turns: int = 1
    turn_gap_s: float = 30.0
    num_forks: int = 1

    @property
    def requests_per_session(self) -> int:
        return self.num_turns * self.num_forks


class Sessions(NamedTuple):
    """Sessions in order of their beginning, system prompts apart."""

    start_s: Floats
    """[sessions]"""
    prefix_index: Integers
    """[sessions] which system prompt each has."""
    said: Integers
    """[sessions, turns] tokens of the user's words."""
    answered: Integers
    """[sessions, turns, forks] tokens of the answers."""


class Arrival(NamedTuple):
    """One request."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    content: Content


def requests_of(sessions: Sessions, sharing: Sharing, count: int, block_tokens: int) -> list[Arrival]:
    """The first `count` requests in order of arrival, with ids of the blocks of `block_tokens` that another may have.

    As many sessions as requests make sure that no later session could bring one of them.

    >>> alone = Sessions(np.zeros(1), np.zeros(1, int), np.array([[20, 8]]), np.array([[[12], [5]]]))
    >>> [each.prompt_tokens for each in requests_of(alone, Sharing(prefix_len=16, num_turns=2), 2, 16)]
    [36, 56]
    """
    _, num_turns, num_forks = sessions.answered.shape
    spoken = np.cumsum(sessions.said, axis=1)
    spoken[:, 1:] += np.cumsum(sessions.answered[:, :-1, 0], axis=1)
    prompts = sharing.prefix_len + spoken
    arrivals = sessions.start_s[:, None] + sharing.turn_gap_s * np.arange(num_turns)
    first = np.argsort(arrivals, axis=None, kind="stable")[: -(-count // num_forks)]
    num_prefixes = int(sessions.prefix_index.max(initial=0)) + 1
    prefix_blocks = sharing.prefix_len // block_tokens
    requests = []
    for index in first.tolist():
        session, turn = divmod(index, num_turns)
        prefix = int(sessions.prefix_index[session]) * _STRIDE
        suffix = (num_prefixes + session) * _STRIDE
        prompt = int(prompts[session, turn])
        for fork in range(num_forks):
            answer = int(sessions.answered[session, turn, fork])
            end = prefix_blocks
            if num_turns > 1 and fork == 0:
                end = (prompt + answer) // block_tokens
            elif sharing.requests_per_session > 1:
                end = prompt // block_tokens
            ids = (*range(prefix, prefix + prefix_blocks), *range(suffix + prefix_blocks, suffix + end))
            requests.append(Arrival(float(arrivals[session, turn]), prompt, answer, ids))
    return requests[:count]
