"""A file with a text, for readers of traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., str]
"""Puts a text into a file (name optional) and returns its path."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(text: str, name: str = "trace.csv") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return put
