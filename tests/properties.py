"""Multiples of the examples that the Hypothesis profile in use gives each property (tests/conftest.py)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(factor: float, **more: Any) -> settings:
    """`factor` times as many as the profile says: above 1 where a failure is rare, below 1 where an example is slow."""
    return settings(max_examples=max(1, round(factor * settings.default.max_examples)), **more)  # type: ignore[union-attr]
