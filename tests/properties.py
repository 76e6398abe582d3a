"""How often properties are tried, by the Hypothesis profile in use (tests/conftest.py), the one of all refusals, what
must be there, and an answer as a terminal has it."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from rich.console import Console

from sim.report.say import Answered, print_answer

T = TypeVar("T")


def examples(factor: float, **more: Any) -> settings:
    """`factor` times as many as the profile says: above 1 where a failure is rare, below 1 where an example is slow."""
    return settings(max_examples=max(1, round(factor * settings.default.max_examples)), **more)  # type: ignore[union-attr]


def assert_refused(act: Callable[[], object], *named: str) -> None:
    """A ValueError of one line, which names all of these."""
    with pytest.raises(ValueError) as caught:
        act()
    said = str(caught.value)
    assert "\n" not in said
    assert [each for each in named if each not in said] == [], said


def some(value: T | None) -> T:
    """A value that must be there."""
    assert value is not None
    return value


def printed(answer: Answered, width: int = 80, *, is_verbose: bool = False) -> str:
    """What a command prints on a terminal of so many columns."""
    out = StringIO()
    print_answer(Console(file=out, width=width), answer, is_verbose=is_verbose)
    return out.getvalue()
