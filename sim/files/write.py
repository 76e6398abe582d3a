"""Files replaced whole or not at all. Not here: what is in them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def check_writable(path: Path) -> None:
    """Raise ValueError, before any work is done, if nothing can be written at `path`."""
    path = path.resolve()
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a directory; want a file")
    if path.exists() and not path.is_file():
        return
    scratch = path.with_name(f".part-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.touch()
        scratch.unlink()
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be written: {error.strerror or error}") from None


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step; links are followed, and devices and pipes written to."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(text)
    else:
        _replace(path, lambda scratch: scratch.write_text(text))


def write_figure(path: Path, draw: Callable[[Path], Any]) -> None:
    """Replace `path` by what `draw` writes to a scratch file of the same suffix."""
    _replace(path, draw)


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".part-{path.name}")
    try:
        write(scratch)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
