"""Tables and pages of validation: CSV, groups, errors in percent, profiles as their files have them, Markdown.

A page is a `string.Template` of validation/templates, filled with frames and sentences. Not here: what it shows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from string import Template
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from sim.costs.profile import Profile
from sim.costs.profile_files import load, save_profile

TEMPLATES = Path(__file__).with_name("templates")
MISSING = "–"
"""Text of a cell without a value."""
_FIGURE = re.compile(r"[-+−<>~]?[\d–]|$")
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
        raise ValueError(f"{str(path)!r} has no rows. Give a CSV with a header")
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


def evaluated(formula: str, names: Mapping[str, Any]) -> Any:
    """Value of a Python expression over `names`. Expressions stand in files of this repository alone."""
    return eval(formula, {"__builtins__": {}, **names})


def off_pct(simulated: float, real: float) -> float:
    """Error of a simulated figure, percent of the real one."""
    return 100.0 * (simulated / real - 1.0)


def mean_size(errors: Iterable[float]) -> float | None:
    """Mean size of errors; None of none."""
    sizes = list(map(abs, errors))
    return fmean(sizes) if sizes else None


# -- pages


def page(path: Path, template: str, **parts: Any) -> str:
    """Text of the page, written to `path`; `$name` of templates/`template`.md is the part called `name`. A part is a
    pandas frame (a table), a list of texts (bullets), or a text. Raises KeyError where the template names a part that
    is not given, ValueError where a given one is in none of its lines."""
    form = Template((TEMPLATES / f"{template}.md").read_text())
    if unused := parts.keys() - set(form.get_identifiers()):
        raise ValueError(f"template {template!r} has no ${', $'.join(sorted(unused))}")
    text = form.substitute({name: _shown(part) for name, part in parts.items()}).strip() + "\n"
    path.write_text(text)
    return text


def markdown(frame: Any) -> str:
    """Table of a pandas frame without its index, no line break at the end; columns of figures stand to the right.

    >>> from pandas import DataFrame
    >>> print(markdown(DataFrame({"policy": ["pd", "pdv"], "gain, %": ["+1.5", None]})))
    | policy | gain, % |
    | :-- | --: |
    | pd | +1.5 |
    | pdv | – |
    """
    cells = frame.astype(object).where(frame.notna(), MISSING).map(str)
    marks = ["--:" if all(map(_FIGURE.match, column)) else ":--" for _, column in cells.items()]
    lines = [list(map(str, cells.columns)), marks, *cells.itertuples(index=False)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def csv_table(path: Path) -> str:
    """Table of a CSV's texts as they are."""
    import pandas as pd

    return markdown(pd.read_csv(path, dtype=str))


def _shown(part: Any) -> str:
    if isinstance(part, str):
        return part
    return "\n".join(f"- {line}" for line in part) if isinstance(part, list) else markdown(part)
