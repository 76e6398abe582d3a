"""Texts on names: that one is not known, and several in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A line for `name` not being among `known`, with the nearest one if there is one, whatever its case.

    >>> unknown("GPU", "H200", ["gb200", "h200-sxm"])
    "unknown GPU 'H200'; did you mean 'h200-sxm'? (known: gb200, h200-sxm)"
    """
    names = [str(each) for each in known]
    lower = {each.lower(): each for each in names}
    longer = [each for each in lower if name and each.startswith(name.lower())]
    found = get_close_matches(name.lower(), longer or lower, n=1, cutoff=0.0 if longer else 0.5)
    nearest = [lower[each] for each in found]
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(names)})"


def install_line(extras: str) -> str:
    """The command that installs `extras` from a clone: lanesim is on no package index."""
    clone = Path(__file__).resolve().parents[1]
    if (clone / "pyproject.toml").exists():
        return f"pip install -e '{clone}[{extras}]'"
    return f"pip install '.[{extras}]' in a clone of lanesim"


def span(texts: Iterable[str]) -> str:
    """The first and the last of several texts, or what both are.

    >>> span(["1", "2", "16"]), span(["7", "7"])
    ('1 to 16', '7')
    """
    first, *_, last = [*texts] * 2
    return first if first == last else f"{first} to {last}"


def in_words(names: Sequence[str]) -> str:
    """The names as a sentence has them; empty for none.

    >>> in_words(["pd", "pdv", "unified"])
    'pd, pdv and unified'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
