"""Tables of validation: rows of CSV in and out, groups, errors in percent; profiles as their files have them.

Not here: what a table holds.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from sim.costs.profile import Profile
from sim.costs.profile_files import load, save_profile

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def as_written(profile: Profile) -> Profile:
    """`profile` as commands have it: written to a file and read from there. Raises ValueError where they refuse it."""
    with TemporaryDirectory() as folder:
        return load(save_profile(profile, Path(folder) / f"{profile.name.replace('/', '-')}.json"))


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV by the names in its header. Raises ValueError where there is none."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{str(path)!r} has no rows; want a CSV with a header")
    return rows


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def grouped(items: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """The items by their key, groups in order of first appearance."""
    groups: dict[Key, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def off_pct(simulated: float, real: float) -> float:
    """Error of a simulated figure, percent of the real one."""
    return 100.0 * (simulated / real - 1.0)


def mean_size(errors: Iterable[float]) -> float | None:
    """Mean size of errors; None of none."""
    sizes = list(map(abs, errors))
    return fmean(sizes) if sizes else None
