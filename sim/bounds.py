"""Bounds of numbers, declared with the fields that hold them: `Annotated[int, Bounds(1, 10_000)]`.

Beyond its bounds a number means nothing more to a simulation, or time, memory or 64 bits end. Not here: what several
fields must be together (each struct's own file).
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import msgspec


class Bounds(NamedTuple):
    """Least and largest value of a field."""

    least: float
    most: float
    is_open: bool = False
    """The least itself is out of bounds."""
    admits_inf: bool = False


LONGEST_S = 1e3
"""No part of a pass takes longer."""
LARGEST = 1e300
"""Bound of numbers that are to be finite."""

Count = Annotated[int, Bounds(1, inf)]
Whole = Annotated[int, Bounds(0, inf)]
Seconds = Annotated[float, Bounds(0, LONGEST_S)]
SomeSeconds = Annotated[float, Bounds(0, LONGEST_S, is_open=True)]
Positive = Annotated[float, Bounds(0, LARGEST, is_open=True)]
NotNegative = Annotated[float, Bounds(0, LARGEST)]
Factor = Annotated[float, Bounds(1, LARGEST)]
"""Slowdown, or a power that sharpens."""
Share = Annotated[float, Bounds(0, 1)]
SomeShare = Annotated[float, Bounds(0, 1, is_open=True)]


class Bounded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of groups of such numbers, checked alike where a file is read and where one is made in Python. A class with
    further rules checks them in its `__post_init__`, after this one's.

    >>> class Pair(Bounded, frozen=True, kw_only=True):
    ...     rows: Count
    >>> Pair(rows=0)
    Traceback (most recent call last):
    ValueError: rows=0 must be at least 1
    """

    def __post_init__(self) -> None:
        check_bounds("", self)


def check_bounds(block: str, given: Any) -> None:
    """Raise ValueError for the first number of `given` out of its bounds, in tuples too; `block` has its keys."""
    kind: Any = type(given)
    for name, bounds in _bounds_of(kind).items():
        value = getattr(given, name)
        key = f"{block}.{name}" if block else name
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if isinstance(each, bool) or not isinstance(each, int | float) or (bounds.admits_inf and each == inf):
                continue
            if not each >= bounds.least or (bounds.is_open and each == bounds.least):
                raise ValueError(
                    f"{key}={value!r} must be {'above' if bounds.is_open else 'at least'} {_written(bounds.least)}"
                )
            if each > bounds.most:
                raise ValueError(f"{key}={value!r} must be at most {_written(bounds.most)}")


def _written(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


@cache
def _bounds_of(kind: type[Any]) -> dict[str, Bounds]:
    hints = get_type_hints(kind, include_extras=True)
    bounds = {name: _bounds_in(hint) for name, hint in hints.items()}
    return {name: each for name, each in bounds.items() if each is not None}


def _bounds_in(hint: Any) -> Bounds | None:
    """The bounds of a number, of one that may be None, or of all numbers of a tuple or mapping."""
    notes = [note for each in (hint, *get_args(hint)) for note in getattr(each, "__metadata__", ())]
    return next((note for note in notes if isinstance(note, Bounds)), None)
