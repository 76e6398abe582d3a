"""Numbers whose types state their bounds, checked alike where a file is read and where a group is made in Python.

Not here: rules between the fields of a group; each group has those.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

LONGEST_S = 1e3
"""No part of a pass takes longer."""
LARGEST = 1e300
"""Bound of numbers that are to be finite."""

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0.0, le=LONGEST_S)]
SomeSeconds = Annotated[float, Meta(gt=0.0, le=LONGEST_S)]
Positive = Annotated[float, Meta(gt=0.0, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Factor = Annotated[float, Meta(ge=1.0, le=LARGEST)]
"""Slowdown, or a power that sharpens."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
SomeShare = Annotated[float, Meta(gt=0.0, le=1.0)]


class Bounded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of groups of such numbers. A class with further rules checks them in its `__post_init__`, after this one's.

    >>> class Pair(Bounded, frozen=True, kw_only=True):
    ...     rows: Count
    >>> Pair(rows=0)
    Traceback (most recent call last):
    ValueError: rows=0 must be at least 1
    """

    def __post_init__(self) -> None:
        for field, meta in _bounds(type(self)):
            value = getattr(self, field)
            values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
            if not all(each is None or _is_within(each, meta) for each in values):
                raise ValueError(f"{field}={value!r} must be {_told(meta)}")


@lru_cache(maxsize=64)
def _bounds(group: type[Bounded]) -> list[tuple[str, Meta]]:
    hints = get_type_hints(group, include_extras=True)
    return [(field, meta) for field in group.__struct_fields__ if (meta := _meta_in(hints[field])) is not None]


def _meta_in(hint: Any) -> Meta | None:
    """The bounds of a number, of one that may be None, or of all numbers of a tuple or mapping."""
    given = [each for each in (hint, *get_args(hint)) if get_origin(each) is Annotated]
    return next((each for each in given[0].__metadata__ if isinstance(each, Meta)), None) if given else None


def _is_within(value: float, meta: Meta) -> bool:
    return (
        (meta.ge is None or value >= meta.ge)
        and (meta.gt is None or value > meta.gt)
        and (meta.le is None or value <= meta.le)
    )


def _told(meta: Meta) -> str:
    bounds = {"at least": meta.ge, "above": meta.gt, "at most": None if meta.le == LARGEST else meta.le}
    return " and ".join(f"{what} {bound:g}" for what, bound in bounds.items() if bound is not None)
