"""Files and folders that appear whole or not at all, by one rename; what was there stays until then.

Scratch lies beside the destination, as `.NAME.part-*`; what a killed process left of it is swept by the next writer,
which holds the lock and so knows that nobody uses it. Not here: what is written, and locks (sim.files.lock).
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
from typing import Any

from sim.files.lock import Busy, locked

_NUMBERS = count()
_LEFT = re.compile(r"\.(.+)\.(?:part-\d+-\d+.*|lock|old)\Z")
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


def write_figure(path: Path, draw: Callable[[Path], Any]) -> None:
    """Replace `path` by what `draw` writes to a scratch file of the same suffix."""
    with new_file(path) as scratch:
        draw(scratch)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A scratch file of the same suffix, which takes the place of `path` if the block succeeds, and goes if not."""
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
    """A scratch folder, which takes the place of `path` if the block succeeds, and goes if not.

    Of what `path` holds, the names that `keeps` says are taken over, unless the new folder has them, too.
    """
    path = path.resolve()
    with locked(path), naming(path):
        sweep(path)
        scratch = _scratch(path)
        try:
            scratch.mkdir()
            yield scratch
            if path.is_dir():
                shutil.copymode(path, scratch)
                for entry in sorted(path.iterdir()):
                    if keeps(entry.name) and not (scratch / entry.name).exists():
                        _take_over(entry, scratch / entry.name)
            _put(scratch, path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def sweep(path: Path) -> None:
    """Remove what a killed writer of `path` left beside it, and finish or undo what it had begun; needs the lock."""
    old = _old(path)
    if old.exists():
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, path)
    start = f".{path.name}.part-"
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(path.parent)):
            if name.startswith(start):
                left = path.with_name(name)
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def sweep_folder(folder: Path) -> None:
    """Remove what killed writers left in `folder` of files that nobody writes to now, whatever their names."""
    with suppress(FileNotFoundError):
        for name in {found[1] for left in os.listdir(folder) if (found := _LEFT.match(left))}:
            with suppress(Busy), locked(folder / name):
                sweep(folder / name)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the system says of a failed write, with the path of the file that was wanted, as ValueError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ValueError(f"{str(path)!r} cannot be written: {reason}") from None


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.part-{os.getpid()}-{next(_NUMBERS)}{path.suffix}")


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


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


def _put(scratch: Path, path: Path) -> None:
    """The scratch folder at `path`; what was there is at `scratch` afterwards, or nowhere."""
    if not path.exists():
        os.rename(scratch, path)
    elif not _exchanged(scratch, path):
        # Two renames where the system has no exchange: `sweep` ends what a kill between them leaves.
        old = _old(path)
        os.rename(path, old)
        os.rename(scratch, path)
        shutil.rmtree(old, ignore_errors=True)


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
