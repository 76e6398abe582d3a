"""Bounds of numbers, declared with the fields that hold them: `Annotated[int, Bounds(1, 10_000)]`.

Beyond its bounds a number means nothing more to a simulation, or time, memory or 64 bits end. Not here: what several
fields must be together (each struct's own file).
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any, NamedTuple, get_type_hints


class Bounds(NamedTuple):
    """Least and largest value of a field."""

    least: float
    most: float
    is_open: bool = False
    """The least itself is out of bounds."""
    admits_inf: bool = False


def check_bounds(block: str, given: Any) -> None:
    """Raise ValueError, one line, for the first number of `given` that is out of its bounds; `block` has its keys."""
    kind: Any = type(given)
    for name, bounds in _bounds_of(kind).items():
        value = getattr(given, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or (bounds.admits_inf and value == inf):
            continue
        key = f"{block}.{name}" if block else name
        if not value >= bounds.least or (bounds.is_open and value == bounds.least):
            raise ValueError(
                f"{key}={value!r} must be {'above' if bounds.is_open else 'at least'} {_written(bounds.least)}"
            )
        if value > bounds.most:
            raise ValueError(f"{key}={value!r} must be at most {_written(bounds.most)}")


def _written(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


@cache
def _bounds_of(kind: type[Any]) -> dict[str, Bounds]:
    hints = get_type_hints(kind, include_extras=True)
    bounds = {name: _among(getattr(hint, "__metadata__", ())) for name, hint in hints.items()}
    return {name: each for name, each in bounds.items() if each is not None}


def _among(notes: tuple[object, ...]) -> Bounds | None:
    return next((note for note in notes if isinstance(note, Bounds)), None)
