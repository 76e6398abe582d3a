"""Values from Python, of plug-ins and callers of `import lanesim`, checked as those from files are.

Not here: files (sim.files), what a policy or an acceptance model must give (sim.policies.registry, sim.acceptance).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

from sim.files.read import CONTROL

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = TypeVar("Kind")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}\Z")
"""Goes into lists with commas, tables, and names of files."""


class PluginError(ValueError):
    """A plug-in raised an exception, or gave something else than it must."""


@contextmanager
def naming_plugin(what: str) -> Iterator[None]:
    """An exception of the block, SystemExit among them, as PluginError that begins with `what`: `policy 'mine'`."""
    try:
        yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def installed(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group of all installed packages, by name; nothing is imported."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=group)}


def loaded(what: str, entry: EntryPoint, kind: type[Kind]) -> Kind:
    """The object that an entry point names; `what` begins messages, such as `policy 'mine'`. Raises PluginError."""
    with naming_plugin(f"{what} of {entry.value}"):
        value = entry.load()
    if not isinstance(value, kind):
        raise PluginError(f"{what}: {entry.value} is not a lanesim.{kind.__name__}")
    return value


def shown(value: object) -> str:
    """`value` for a message, on one line and not long."""
    return f"{' '.join(repr(value).split()):.60}"


def checked_name(what: str, value: object) -> str:
    """`value` where it can be the name of something registered. Raises PluginError."""
    if not isinstance(value, str) or not NAME.match(value):
        raise PluginError(f"{what} {shown(value)} must be at most 100 letters, digits and _ . + -")
    return value


def checked_text(what: str, value: object) -> str:
    """`value` where it is a text without control characters. Raises PluginError."""
    if not isinstance(value, str) or CONTROL.search(value):
        raise PluginError(f"{what}={shown(value)} must be a text without control characters")
    return value


def plain_number(value: Any) -> Any:
    """`value`, one of numpy's as Python's own, inside lists and mappings, too; an array as a list."""
    if type(value).__module__ == "numpy":
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain_number(each) for key, each in value.items()}
    return type(value)(map(plain_number, value)) if type(value) in (list, tuple) else value


def checked_count(what: str, value: object, least: int, most: int = 2**31) -> int:
    """`value` where it is a whole number, numpy's among them, from `least` to `most`. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise PluginError(f"{what}={shown(value)} must be at least {least} and at most {most}, a whole number")
    return int(value)


def checked_counts(what: str, values: object, least: int, most: int = 2**31) -> list[int]:
    """The same of each of `values`, a list or an array."""
    return [checked_count(what, value, least, most) for value in checked_list(what, values)]


def checked_reals(what: str, values: object, low: float, high: float) -> list[float]:
    """Each of `values` where it is a number above `low` and below `high`. Raises ValueError."""
    listed = checked_list(what, values)
    for value in listed:
        if isinstance(value, bool) or not isinstance(value, Real) or not low < float(value) < high:
            raise PluginError(f"{what}: {shown(value)} must be a number above {low:g} and below {high:g}")
    return [float(value) for value in listed]


def checked_list(what: str, values: object) -> list[Any]:
    """`values` as a list, where they are several. Raises ValueError."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise PluginError(f"{what}={shown(values)} must be a list")
    return list(values)
