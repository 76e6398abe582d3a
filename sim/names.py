"""Texts on names and times: that a name is not known, several in one sentence, milliseconds as people write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from math import floor, log10
from pathlib import Path

DRAFT_KEY = "speculation.num_speculative_tokens"
"""The draft length's key in a scenario."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A line for `name` not being among `known`, with the nearest one if there is one, whatever its case.

    >>> unknown("GPU", "H200", ["gb200", "h200-sxm"])
    "unknown GPU 'H200'. Did you mean 'h200-sxm'? Choose from gb200, h200-sxm"
    >>> unknown("GPU", "4090", ["l4", "rtx-4090"])
    "unknown GPU '4090'. Did you mean 'rtx-4090'? Choose from l4, rtx-4090"
    """
    names = [str(each) for each in known]
    lower = {each.lower(): each for each in names}
    longer = [each for each in lower if name and each.startswith(name.lower())]
    longer = longer or [each for each in lower if len(name) > 2 and name.lower() in each]
    found = get_close_matches(name.lower(), longer or lower, n=1, cutoff=0.0 if longer else 0.5)
    nearest = [lower[each] for each in found]
    hint = f". Did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {what} {name!r}{hint or '.'} Choose from {', '.join(names)}"


def install_line(extras: str) -> str:
    """The command that installs `extras` from a clone: lanesim is on no package index."""
    clone = Path(__file__).resolve().parents[1]
    if (clone / "pyproject.toml").exists():
        return f"pip install -e '{clone}[{extras}]'"
    return f"pip install '.[{extras}]' in a clone of lanesim"


def span(texts: Iterable[str]) -> str:
    """The first and the last of several texts, or what both are. Empty for none.

    >>> span(["1", "2", "16"]), span(["7", "7"])
    ('1 to 16', '7')
    """
    first, *_, last = [*texts] * 2 or [""] * 2
    return first if first == last else f"{first} to {last}"


def in_words(names: Sequence[str]) -> str:
    """The names as a sentence has them; empty for none.

    >>> in_words(["pd", "pdv", "unified"])
    'pd, pdv and unified'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def duration(*values_ms: float) -> str:
    """A time with three digits that count, or the first and the last of several; seconds from 100 ms on.

    >>> duration(682.4), duration(37.52), duration(636.0, 1240.0)
    ('0.682 s', '37.5 ms', '0.64 to 1.24 s')
    """
    largest = max(map(abs, values_ms))
    scale, unit = (1e-3, "s") if largest >= 100.0 else (1.0, "ms")
    decimals = 2 if largest == 0.0 else max(0, 2 - floor(log10(largest * scale)))
    return f"{span(f'{value * scale:,.{decimals}f}' for value in values_ms)} {unit}"


def capital(text: str) -> str:
    """The text with a capital, unless it begins with a name that has none, such as `pd` and `eagle3`.

    >>> capital("continuous is fastest"), capital("pd is fastest"), capital("eagle3 is fastest")
    ('Continuous is fastest', 'pd is fastest', 'eagle3 is fastest')
    """
    first = text.split(maxsplit=1)[0].rstrip(",:") if text else ""
    is_word = first.isalpha() and set(first) & set("aeiou")
    return text[:1].upper() + text[1:] if is_word else text
