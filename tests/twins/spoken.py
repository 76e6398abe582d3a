"""Numbers that a sentence says, with their units and the precision that was printed.

Not here: which cell of a table or of the JSON a number should be (the tests of each command).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

UNITS = {
    "ms": ("s", 1e-3),
    "µs": ("s", 1e-6),
    "s": ("s", 1.0),
    "%": ("%", 0.01),
    "times": ("times", 1.0),
    "requests/s": ("requests/s", 1.0),
    "req/s": ("requests/s", 1.0),
    "/s": ("requests/s", 1.0),
    "output tokens/s": ("tok/s", 1.0),
    "tokens/s": ("tok/s", 1.0),
    "tok/s": ("tok/s", 1.0),
}
"""The base unit of each unit that is printed, and how many of these it is; a percent is a hundredth."""
_UNIT_OF_K = ("K", 1.0)
_K = r"(?P<k>\b[Kk] ?= ?|\bK )"
_NUMBER = r"(?P<number>(?<![\w.])(?<![A-Za-z][-:/@])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?)"
_UNIT = "|".join(re.escape(unit) + r"(?!\w)" for unit in sorted(UNITS, key=len, reverse=True))
_SPOKEN = re.compile(rf"{_K}?{_NUMBER}(?P<thousand>k\b)?(?: ?(?P<unit>{_UNIT}))?(?![-\w]|\.\d)")
_JOINS = re.compile(r"\s*(?:,|and|or|to|and to|\.\.|–)\s*")
"""What stands between numbers that share the unit of the last one, or the K of the first one."""


class Spoken(NamedTuple):
    """A number of a sentence."""

    value: float
    """In base units: 531 ms is 0.531, 16 % is 0.16."""
    unit: str
    """`s`, `%`, `requests/s`, `tok/s`, `times`, `K`; empty where there is none."""
    half: float
    """Half a unit of the last digit that was printed, in base units."""
    text: str

    def is_any(self, values: Iterable[float | None]) -> bool:
        """Whether one of the `values`, in base units, is printed so."""
        slack = self.half * (1.0 + 1e-6) + 1e-12
        return any(value is not None and abs(value - self.value) <= slack for value in values)


def spoken(sentence: str) -> list[Spoken]:
    """Numbers of a sentence in their order; digits of a name, such as llama-3.1-8b, h100 or p99, are none.

    >>> [(each.value, each.unit) for each in spoken("pd 531 to 1,204 ms, K = 3 and 4 up to 1.5k req/s, 16 % more")]
    [(0.531, 's'), (1.204, 's'), (3.0, 'K'), (4.0, 'K'), (1500.0, 'requests/s'), (0.16, '%')]
    """
    found = list(_SPOKEN.finditer(sentence))
    units = [_UNIT_OF_K if each["k"] else UNITS.get(each["unit"] or "") for each in found]
    between = [sentence[one.end() : other.start()] for one, other in pairwise(found)]
    joined = [bool(_JOINS.fullmatch(text)) for text in between]
    for place in reversed(range(len(joined))):
        if joined[place] and units[place] is None and units[place + 1] is not _UNIT_OF_K:
            units[place] = units[place + 1]
    for place, is_joined in enumerate(joined):
        if is_joined and units[place] is _UNIT_OF_K and units[place + 1] is None:
            units[place + 1] = _UNIT_OF_K
    return [_number(each, *(unit or ("", 1.0))) for each, unit in zip(found, units, strict=True)]


def _number(match: re.Match[str], unit: str, scale: float) -> Spoken:
    digits = match["number"].replace(",", "").replace("−", "-")
    scale *= 1000.0 if match["thousand"] else 1.0
    mantissa, _, exponent = digits.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return Spoken(float(digits) * scale, unit, 0.5 * last * scale, match[0])
