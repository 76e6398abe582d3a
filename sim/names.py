"""One way to say that a name is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A line for `name` not being among `known`, with the nearest one if there is one."""
    names = list(known)
    nearest = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(names)})"
