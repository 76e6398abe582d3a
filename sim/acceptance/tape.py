"""Recorded acceptance: a file of tapes, one per request, and the model that plays them back.

A tape is a list over output positions: entry p is the number of tokens that one long draft would yield with p output
tokens out, the target's token included, so at least 1 (entry 0, before the first token, is never used). JSON lines,
each a list or an object with one list-valued field; `FILE#FIELD` names the field where there are several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.acceptance.models import MAX_DRAFT_TOKENS, Acceptance, RunLengths
from sim.draws import Positions
from sim.files.json_values import Json, json_lines
from sim.names import unknown

Tapes = tuple[NDArray[np.uint8], ...]
"""Each request's [positions]: tokens that a draft yields, 1 .. MAX_DRAFT_TOKENS + 1."""


@dataclass(frozen=True, slots=True, eq=False)
class TapeAcceptance(Acceptance):
    """Request i plays tape i modulo their number, whatever the seed; past its end a tape starts over at position 1."""

    tapes: Tapes = field(repr=False)

    def __post_init__(self) -> None:
        if not self.tapes:
            raise ValueError("acceptance: a tape needs at least one request")
        for number, tape in enumerate(self.tapes):
            if len(tape) < 2:
                raise ValueError(f"acceptance: tape {number + 1} has {len(tape)} positions, and at least 2 are needed")

    def unconditional_rates(self, num_speculative_tokens: int) -> tuple[float, ...]:
        """Shares over all rounds of playing every tape once."""
        counts = np.zeros(num_speculative_tokens + 1, dtype=np.int64)
        for tape in self.tapes:
            counts += np.bincount(replay(tape, num_speculative_tokens), minlength=len(counts))
        at_least = np.cumsum(counts[::-1])[::-1] / max(1, counts.sum())
        return tuple(at_least[1:].tolist())

    def run_lengths(self, window: Positions, depth: int) -> RunLengths:
        rows = []
        for index, width in zip(window.indexes.tolist(), window.widths.tolist(), strict=True):
            tape = self.tapes[index % len(self.tapes)]
            positions = np.arange(window.first, window.first + width)
            rows.append(tape[1 + (positions - 1) % (len(tape) - 1)])
        return np.minimum(np.concatenate(rows) - np.uint8(1), np.uint8(depth))


def replay(tape: Sequence[int] | RunLengths, num_speculative_tokens: int) -> list[int]:
    """Accepted tokens of the successive rounds of one recorded request, from its first token to its end.

    >>> replay([1, 3, 9, 2, 4, 1, 1], 2), replay([1, 3, 2, 2, 4, 1, 1, 2], 4), replay([1], 4)
    ([2, 2], [2, 3], [])
    """
    yields = tape.tolist() if isinstance(tape, np.ndarray) else tape
    accepted = []
    position = 1
    while position < len(yields):
        accepted.append(min(yields[position] - 1, num_speculative_tokens))
        position += accepted[-1] + 1
    return accepted


def read_tapes(source: str) -> Tapes:
    """The tapes of `source`, FILE or FILE#FIELD. Raises ValueError naming file and line."""
    name, _, wanted = source.rpartition("#") if "#" in source else (source, "", "")
    tapes = []
    for number, row in json_lines(name, "acceptance tape"):
        where = f"acceptance tape {name!r} line {number}"
        tapes.append(_tape(row[_column(row, wanted, where)] if isinstance(row, dict) else row, where))
    if not tapes:
        raise ValueError(f"acceptance tape {name!r}: no request in it. Give JSON lines, one list per request")
    return tuple(tapes)


def _column(row: Mapping[str, Json], wanted: str, where: str) -> str:
    """The name of the list that is the tape."""
    lists = [key for key, value in row.items() if isinstance(value, list)]
    if wanted:
        if wanted not in lists:
            raise ValueError(f"{where}: {unknown('list field', wanted, lists)}")
        return wanted
    if len(lists) != 1:
        raise ValueError(f"{where}: {len(lists)} list fields ({', '.join(lists) or 'none'}). Name one as FILE#FIELD")
    return lists[0]


def _tape(values: Json, where: str) -> NDArray[np.uint8]:
    if not isinstance(values, list) or not all(type(value) is int and value >= 1 for value in values):
        raise ValueError(f"{where} must be a list of whole numbers from 1, the tokens of a draft at each position")
    if len(values) < 2:
        raise ValueError(f"{where}: {len(values)} positions, and at least 2 are needed")
    return np.array([min(value, MAX_DRAFT_TOKENS + 1) for value in values], dtype=np.uint8)
