"""Groups of numbers refuse what their types rule out, made in Python as read from a file."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest

from sim.bounds import Bounded, Count, Positive, Seconds, Share


class Group(Bounded, frozen=True, kw_only=True):
    rows: Count = 1
    share: Share = 1.0
    wait_s: Seconds | None = None
    ratios: tuple[Positive, ...] = ()
    factors: dict[str, Positive] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("rows", 0, "at least 1"),
        ("share", 1.5, "at most 1"),
        ("wait_s", -1e-9, "at least 0"),
        ("wait_s", nan, "at least 0"),
        ("ratios", (1.0, 0.0), "above 0"),
        ("factors", {"a": 1.0, "b": inf}, "at most"),
    ],
)
def test_a_number_out_of_bounds_is_refused_by_its_field(field: str, value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=rf"^{field}=.* must be {told}"):
        Group(**{field: value})
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.convert({field: value}, Group)


def test_the_bounds_themselves_are_within() -> None:
    assert Group(rows=1, share=0.0, wait_s=1e3, ratios=(1e-300,), factors={"a": 2.0}).wait_s == 1e3
