"""Sizes beyond a profile's measured range: the largest of each size, as data.

Inside a block of `collecting` cost models add to it and say nothing; outside of one each of them warns once per size.
Not here: which sizes have a range (sim.costs.passes), where it is said (sim.cli.console).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

WORDS = {
    "row_context_tokens": "contexts",
    "tokens": "tokens of a pass",
    "rows": "rows",
    "chunk_tokens": "prompt chunks",
    "history_tokens": "tokens before a chunk",
    "head_rows": "rows of the LM head",
    "queries": "queries of a row",
}
"""Names of a size, the likeliest first."""
BY_ROWS = "row_context_tokens"
"""The size whose measured range depends on the rows of the pass."""


class OutsideProfileWarning(UserWarning):
    """A cost was extrapolated beyond the measured range."""


class Largest(NamedTuple):
    """The largest that was requested of one size, up to where it was measured, and the rows of that pass."""

    got: int
    measured: int
    rows: int


class Extrapolation:
    """The largest of each size beyond the measured range, by profile and size."""

    def __init__(self) -> None:
        self.largest: dict[tuple[str, str], Largest] = {}

    def add(self, profile: str, size: str, largest: Largest) -> None:
        """Keep it where it is the largest so far; of equal ones, that of the smaller measured range."""
        known = self.largest.get((profile, size))
        if known is None or (known.got, -known.measured) < (largest.got, -largest.measured):
            self.largest[profile, size] = largest

    def __str__(self) -> str:
        """One line, empty where nothing was extrapolated."""
        order = list(WORDS)
        largest = sorted(self.largest.items(), key=lambda item: (item[0][0], order.index(item[0][1])))
        texts: dict[str, list[str]] = {}
        for (profile, size), (got, measured, rows) in largest:
            text = f"{WORDS[size]} to {got:,} extrapolated, measured to {measured:,}"
            at = f" at {rows:,} row{'s' if rows > 1 else ''}" if size == BY_ROWS else ""
            texts.setdefault(profile, []).append(text + at)
        return ". ".join(f"{profile}: {', '.join(parts)}" for profile, parts in texts.items())


_current: ContextVar[Extrapolation | None] = ContextVar("extrapolation", default=None)


@contextmanager
def collecting() -> Iterator[Extrapolation]:
    """Extrapolation within the block; a block within another one collects apart."""
    extrapolation = Extrapolation()
    token = _current.set(extrapolation)
    try:
        yield extrapolation
    finally:
        _current.reset(token)


def collected() -> Extrapolation | None:
    """Extrapolation that the innermost block around the caller has collected; None outside of any."""
    return _current.get()


def pass_on(extrapolation: Extrapolation) -> None:
    """Add to the block around the caller what another process collected; warn where there is none."""
    around = collected()
    for (profile, size), largest in extrapolation.largest.items():
        if around is None:
            warnings.warn(outside(profile, size), OutsideProfileWarning, stacklevel=2)
        else:
            around.add(profile, size, largest)


def outside(profile: str, size: str) -> str:
    """The warning's text. It is the same for every work, so that Python shows it once."""
    return f"profile {profile!r}: {WORDS[size]} beyond the largest measured. Costs there are extrapolated"
