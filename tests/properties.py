"""How often properties are tried, by the Hypothesis profile in use (tests/conftest.py), and the one of all refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings


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
