"""Destinations: whether something can be written there, with whose consent, and that nobody else writes there.

Nothing that is there is replaced without consent, nothing that lanesim reads or ships is replaced at all. All of it is
checked before any work begins, and the lock is held until the work is written. A lock is the operating system's: a
process that was killed leaves only its file, `.NAME.lanesim.lock`, which the next one removes.
Not here: writing (sim.files.write).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path

SHIPPED = Path(__file__).resolve().parent.parent
"""The installed package with its profiles, engines and evidence: no output goes there."""
LOCK = "lanesim.lock"
"""Ending of the name of a lock's file: nobody else's has it, so none of a user's is emptied and taken away."""


@contextmanager
def destinations(
    *,
    files: Mapping[str, str | Path | None] = {},
    folders: Mapping[str, Path | None] = {},
    added_to: Mapping[str, Path | None] = {},
    inputs: Iterable[str | Path | None] = (),
    own_names: Collection[str] = (),
    overwrite: bool = False,
) -> Iterator[None]:
    """Hold the destinations that a command will write to, by the flag that named each; none and `-` are left out.

    `folders` are replaced whole. Those `added_to` get files beside what is there, and are not held. `inputs` are read,
    `own_names` go into a folder. Raises ValueError where a destination cannot be written, is an input, another
    destination or shipped, is held by another process, or is there and `overwrite` is false.
    """
    read = [Path(path) for path in inputs if path not in (None, "")]
    wanted = [(flag, path, True) for flag, path in folders.items() if path is not None]
    wanted += [(flag, Path(path), False) for flag, path in files.items() if path is not None and str(path) != "-"]
    taken: dict[Path, str] = {}
    with ExitStack() as stack:
        for flag, path, is_folder in wanted:
            target = _resolved(flag, path)
            problems = chain(_taken(target, taken), _read_too(target, read, is_folder), _unfit(target, is_folder))
            if not is_folder and target.parent in taken and target.name in own_names:
                problems = chain([f"is a file that {taken[target.parent]} has already. Choose another"], problems)
            for problem in chain(problems, () if overwrite else _replaced(target, is_folder)):
                raise ValueError(f"{flag} {str(path)!r} {problem}")
            taken[target] = flag
        for flag, path, is_folder in wanted:
            # A device or a pipe is written to as it is.
            if is_folder or os.path.isfile(path) or not os.path.exists(path):
                stack.enter_context(locked(path, f"{flag} {str(path)!r}"))
        for flag, folder in added_to.items():
            if folder is not None:
                for problem in _taken(_resolved(flag, folder), taken):
                    raise ValueError(f"{flag} {str(folder)!r} {problem}")
                stack.callback(_leave_no_empty, _made(flag, folder))
        yield


def check_destinations(
    paths: Mapping[str, Path | None], *, overwrite: bool, inputs: Iterable[str | Path | None] = ()
) -> None:
    """Raise ValueError as `destinations` does, for files and folders of programs that hold none of them."""
    folders = {flag: path for flag, path in paths.items() if path is not None and path.is_dir()}
    with destinations(files={**paths, **dict.fromkeys(folders)}, folders=folders, inputs=inputs, overwrite=overwrite):
        pass


@contextmanager
def locked(path: Path, what: str | None = None) -> Iterator[None]:
    """Keep other processes from writing to `path`, whose folders are made; nested blocks share it. Raises ValueError,
    at once, if another process holds it or nothing can be made there."""
    from filelock import FileLock, Timeout

    target, what = _resolved("destination", path), what or repr(str(path))
    lock = FileLock(target.with_name(f".{target.name}.{LOCK}"), timeout=0.0, is_singleton=True, thread_local=False)
    new = _absent(target.parent)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        if not os.path.exists(lock.lock_file):
            raise ValueError(f"{what} cannot be written: no file can be made in {str(target.parent)!r}") from None
        raise ValueError(f"{what} is being written by another process. Wait for it, or choose another") from None
    except OSError as error:
        _leave_no_empty(new)
        raise ValueError(f"{what} cannot be written: {error.strerror or error}") from None
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            # Whoever opened this file before has to look again: the lock of a file that is gone counts for nothing.
            with suppress(OSError):
                os.unlink(lock.lock_file)
        lock.release()
        _leave_no_empty(new)


def _made(flag: str, folder: Path) -> list[Path]:
    """Make `folder` and see that files can be made in it; the folders that were not there before, innermost first."""
    from tempfile import TemporaryFile

    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ValueError(f"{flag} {str(folder)!r} is a file. Give a directory")
    target = _resolved(flag, folder)
    new = _absent(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=target):
            return new
    except OSError as error:
        _leave_no_empty(new)
        raise ValueError(f"{flag} {str(folder)!r} cannot be written: {error.strerror or error}") from None


def _absent(folder: Path) -> list[Path]:
    """The missing ones of a folder and those above it, innermost first."""
    return [each for each in (folder, *folder.parents) if not os.path.exists(each)]


def _leave_no_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _resolved(flag: str, path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{flag} {str(path)!r} cannot be written: {error}") from None


def _read_too(target: Path, inputs: list[Path], is_folder: bool) -> Iterator[str]:
    is_there = os.path.exists(target)
    for each in inputs:
        try:
            real = each.resolve(strict=True)
            is_same = real == target or (is_there and os.path.samefile(real, target))
        except (OSError, RuntimeError, ValueError):
            continue  # No file: a name, or something that its reader will refuse.
        if is_there and real in target.parents and not is_folder:
            yield f"is in {str(each)!r}, which is read. Choose another"
        if is_same:
            yield "is read, too, and would be written over. Choose another"
        if is_folder and target in real.parents:
            yield f"holds {str(each)!r}, which is read. Choose another"


def _taken(target: Path, taken: Mapping[Path, str]) -> Iterator[str]:
    """Problems with a place that lanesim ships, or another output has."""
    if SHIPPED in (target, *target.parents):
        yield "is in the installed package, which nothing is written to. Choose another"
    if target in taken:
        yield f"is where {taken[target]} goes, too. Choose another"


def _replaced(target: Path, is_folder: bool) -> Iterator[str]:
    """Something is there that would be replaced: no device, pipe or empty folder is."""
    if is_folder and os.path.isdir(target) and os.listdir(target):
        yield "is not empty. Choose another or add --overwrite"
    if not is_folder and os.path.isfile(target):
        yield "exists. Choose another or add --overwrite"


def _unfit(target: Path, is_folder: bool) -> Iterator[str]:
    """Problems with a place that can be no file, or no folder that is replaced whole."""
    if not is_folder:
        if os.path.isdir(target):
            yield "is a directory. Give a file"
        return
    if os.path.exists(target) and not os.path.isdir(target):
        yield "is a file. Give a directory"
    if target == Path.cwd() or target in Path.cwd().parents:
        yield "is the directory that this runs in. Name one inside it"
    if os.path.ismount(target):
        yield "is a mount point, which cannot be replaced whole. Name one inside it"
