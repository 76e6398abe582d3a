"""Requests that have prompts in common by the way they come about: system prompts, turns of a session, forks.

A session's next turn comes `turn_gap_s` after the last one, answered or not, with all that was said before it; without
a request rate, as many requests later as are served at once. Sessions have begun before the run. Each prompt may be
asked several times at once (samples, branches of a search); a session goes on from the first answer.
Not here: how long what is said is, and when sessions begin (sim.workload.generate).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from sim.bounds import Bounds, check_bounds
from sim.draws import Floats, Integers
from sim.interface.request_columns import Requests
from sim.workload.content import Content

_STRIDE = 1 << 32
"""Content ids per system prompt and per session."""


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Common content of generated prompts. The file of a trace says which it has."""

    prefix_len: Annotated[int, Bounds(0, 10_000_000)] = 0
    """Tokens of a shared system prompt before every prompt."""
    num_prefixes: Annotated[int, Bounds(1, 10_000_000)] = 1
    """Different system prompts; each session has one."""
    num_turns: Annotated[int, Bounds(1, 10_000)] = 1
    """Requests of a session; the prompt of each holds all turns before it."""
    turn_gap_s: Annotated[float, Bounds(0, 1e6)] = 30.0
    """Seconds from the arrival of one turn to that of the next; of an infinite request_rate, max_concurrency requests.
    Sessions have begun before the run, with nothing of what was said in memory."""
    num_forks: Annotated[int, Bounds(1, 10_000)] = 1
    """Answers to each prompt, requested at the same time; a session goes on from the first."""

    def __post_init__(self) -> None:
        check_bounds("workload.sharing", self)
        if self.num_prefixes > 1 and not self.prefix_len:
            raise ValueError(f"workload.sharing.num_prefixes={self.num_prefixes}: prompts without prefix_len have none")

    @property
    def requests_per_session(self) -> int:
        return self.num_turns * self.num_forks

    @property
    def is_any(self) -> bool:
        """Prompts have something in common."""
        return self.prefix_len > 0 or self.requests_per_session > 1

    def ends_with_a_block(self, block_tokens: int) -> bool:
        """What prompts have in common is a system prompt of whole blocks alone."""
        return self.prefix_len > 0 == self.prefix_len % block_tokens and self.requests_per_session == 1


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


def requests_of(sessions: Sessions, sharing: Sharing, count: int, block_tokens: int) -> Requests:
    """The first `count` requests from 0 on in order of arrival, with ids of the blocks of `block_tokens` that another
    may have.

    As many sessions from 0 on as requests make sure that no later session could bring one of them.

    >>> alone = Sessions(np.zeros(1), np.zeros(1, int), np.array([[20, 8]]), np.array([[[12], [5]]]))
    >>> requests_of(alone, Sharing(prefix_len=16, num_turns=2), 2, 16).column("prompt_tokens").tolist()
    [36, 56]
    """
    _, num_turns, num_forks = sessions.answered.shape
    spoken = np.cumsum(sessions.said, axis=1)
    spoken[:, 1:] += np.cumsum(sessions.answered[:, :-1, 0], axis=1)
    prompts = sharing.prefix_len + spoken
    arrivals = sessions.start_s[:, None] + sharing.turn_gap_s * np.arange(num_turns)
    in_order = np.argsort(arrivals, axis=None, kind="stable")
    first = in_order[arrivals.ravel()[in_order] >= 0.0][: -(-count // num_forks)]
    num_prefixes = int(sessions.prefix_index.max(initial=0)) + 1
    prefix_blocks = sharing.prefix_len // block_tokens
    columns: list[tuple[float, int, int]] = []
    contents: list[Content] = []
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
            columns.append((float(arrivals[session, turn]), prompt, answer))
            contents.append(ids)
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    each = dict(zip(names, map(np.array, zip(*columns[:count], strict=True)), strict=True))
    return Requests(each, contents=contents[:count])
