"""Files and folders that appear whole or not at all, by one rename; what was there stays until then.

Scratch lies beside the destination, as `.NAME.part-lanesim-PID-NUMBER` and its suffix: a file, or a folder with MARK in
it. What a killed process left of it is swept by the next writer, which holds the lock and so knows that nobody uses it;
anything else, whatever its name, is somebody's and stays. Not here: what is written, and locks (sim.files.lock).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from sim.files.lock import locked

_NUMBERS = count()
_MADE = r"part-lanesim-\d+-\d+"
MARK = ".lanesim-scratch"
"""Empty file in a scratch folder: made before anything else there, and removed after everything else."""
NEW, OLD = "new", "old"
"""Folders in a scratch folder: what becomes the destination, and what was there, between two renames."""
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


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
    with new_file(path) as scratch:
        scratch.write_bytes(content)


def write_figure(path: Path, draw: Callable[[Path], object]) -> None:
    """Replace `path` by what `draw` writes to a scratch file of the same suffix."""
    with new_file(path) as scratch:
        draw(scratch)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A scratch file of the same suffix, which replaces `path` if the block succeeds, and goes if not."""
    path = path.resolve()
    with locked(path), naming(path):
        sweep(path)
        scratch = _scratch(path)
        try:
            yield scratch
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, *, keeps: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """A scratch folder, which replaces `path` if the block succeeds, and goes if not.

    Of what `path` holds, the names that `keeps` says are taken over, unless the new folder has them, too.
    """
    path = path.resolve()
    with locked(path), naming(path):
        sweep(path)
        holder = _scratch(path)
        scratch = holder / NEW
        try:
            holder.mkdir()
            (holder / MARK).touch()
            scratch.mkdir()
            yield scratch
            if path.is_dir():
                shutil.copymode(path, scratch)
                for entry in sorted(path.iterdir()):
                    if keeps(entry.name) and not (scratch / entry.name).exists():
                        _take_over(entry, scratch / entry.name)
            _put(holder, path)
        finally:
            _end(holder, path)


def sweep(path: Path) -> None:
    """Remove what a killed writer of `path` left beside it, and undo what it had half done; needs the lock."""
    made = re.compile(rf"{re.escape(f'.{path.name}.')}{_MADE}{re.escape(path.suffix)}")
    with suppress(FileNotFoundError):
        for name in sorted(filter(made.fullmatch, os.listdir(path.parent))):
            left = path.with_name(name)
            if left.is_symlink():
                continue
            if left.is_dir():
                _end(left, path)
            elif left.is_file():
                left.unlink(missing_ok=True)


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


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.part-lanesim-{os.getpid()}-{next(_NUMBERS)}{path.suffix}")


def _end(holder: Path, path: Path) -> None:
    """Remove a scratch folder, if it is ours; what was at `path` goes back there if its writer got no further."""
    old, new = holder / OLD, holder / NEW
    if (holder / MARK).exists():
        if old.exists() and new.exists():
            if path.exists():
                return  # Made meanwhile by somebody without the lock: `old` is all there is of what was at `path`.
            os.rename(old, path)
        for folder in (old, new):
            shutil.rmtree(folder, ignore_errors=True)
        if os.listdir(holder) == [MARK]:
            (holder / MARK).unlink()
    with suppress(OSError):
        holder.rmdir()


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


def _put(holder: Path, path: Path) -> None:
    """The new folder of `holder` at `path`; what was there is in `holder` afterwards."""
    new = holder / NEW
    if not path.exists():
        os.rename(new, path)
    elif not _exchanged(new, path):
        # Two renames where the system has no exchange: `_end` undoes the first if a kill between them leaves it.
        os.rename(path, holder / OLD)
        os.rename(new, path)


def _exchanged(one: Path, other: Path) -> bool:
    """Swap the names of two folders in one step; False where the system or the file system cannot."""
    import ctypes

    from_name, to_name = os.fsencode(one), os.fsencode(other)
    sys.audit("os.rename", from_name, to_name, -1, -1)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            swap_flag = 2
            failed = library.renamex_np(from_name, to_name, swap_flag)
        else:
            here, exchange_flag = -100, 2
            failed = library.renameat2(here, from_name, here, to_name, exchange_flag)
    except (OSError, AttributeError, TypeError):
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(other))
