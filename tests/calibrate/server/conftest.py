"""Servers on loopback, read by a machine that may be busy."""

from __future__ import annotations

import pytest

from calibrate.server import endpoint


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine reads several pieces at once."""
    monkeypatch.setattr(endpoint, "MAX_AT_ONCE", 1.0)
