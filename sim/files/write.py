"""Files and folders that appear whole or not at all, by one rename. The old ones stay until then.

Scratch lies beside the destination, as `.NAME.part-lanesim-new` and its suffix. The writer holds the lock: what lies
there was left by a killed process, and goes. A folder that is replaced is `.NAME.part-lanesim-old` between two renames,
and the next writer puts it back. Not here: what is written, and locks (sim.files.lock).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sim.files.lock import locked


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step; links are followed, and devices and pipes written to."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` likewise. Raises ValueError, one line, where that fails."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        with naming(path):
            path.write_bytes(content)
        return
    with locked(path), naming(path):
        scratch = _beside(path, "new")
        _remove(scratch)
        try:
            scratch.write_bytes(content)
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, *, keeps: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """A scratch folder, which replaces `path` if the block succeeds, and goes if not.

    Of what `path` holds, the names that `keeps` says are taken over, unless the new folder has them, too. Raises
    ValueError where a killed writer moved `path` away and something else has its name since.
    """
    path = path.resolve()
    with locked(path), naming(path):
        scratch, old = _beside(path, "new"), _beside(path, "old")
        if path.exists() and old.exists() and scratch.exists():
            raise ValueError(f"{str(old)!r} is what a killed run moved away from {str(path)!r}. Rename one of them")
        _end(scratch, old, path)
        try:
            scratch.mkdir()
            yield scratch
            if path.is_dir():
                shutil.copymode(path, scratch)
                for entry in sorted(path.iterdir()):
                    if keeps(entry.name) and not (scratch / entry.name).exists():
                        _take_over(entry, scratch / entry.name)
                os.rename(path, old)
            os.rename(scratch, path)
        finally:
            _end(scratch, old, path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """The system's reason for a failed write, with the path of the file that was wanted, as ValueError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ValueError(f"{str(path)!r} cannot be written: {reason}") from None


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.part-lanesim-{what}{path.suffix}")


def _end(scratch: Path, old: Path, path: Path) -> None:
    """Remove both; what was at `path` goes back there if its writer got no further."""
    if old.exists() and not path.exists():
        os.rename(old, path)
    _remove(scratch)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _take_over(entry: Path, to: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.copytree(entry, to, symlinks=True, copy_function=_link)
    elif entry.is_symlink():
        os.symlink(os.readlink(entry), to)
    else:
        _link(str(entry), str(to))


def _link(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)
