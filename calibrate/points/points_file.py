"""The points file: what one machine measured, appended line by line, so that a kill loses one visit at most.

JSON lines. The first is the header: schema, fingerprint, options and the plan. Then, in any order, `point` (one per
visit to a place), `clocks` (what the driver told of the visit before it), `host` and `rates` lines.
Not here: measuring (calibrate.measure), the profile made of it (sim.costs.profile).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from calibrate.points.point_works import Cell, Place, merged, place_of
from sim.costs.profile import MeasuredPoint
from sim.files.json_values import Json, convert, parse_json
from sim.files.lock import locked
from sim.files.read import read_bytes, read_text
from sim.files.write import naming, write_text

SCHEMA = 1
MAX_VISITS = 1000
LONGEST_S = 1000.0
"""A pass of more seconds than this is a pass in other units."""
HOST_KEYS = (
    *("is_cpu", "gpu", "multiprocessors", "kv_layout", "date", "kernels_per_layer", "result_s"),
    *("step_s", "row_s", "inflation_eager"),
)
MAY_CHANGE = ("clock", "date", "driver")
"""Fingerprint keys beginning so do not tell two machines apart."""


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPU's driver told while a place was visited, at its slowest; None where it does not tell."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    """Why the clocks were below what they could be, under NVML's names."""
    place: Place | None = None
    """The place that was visited; None in files of earlier versions."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that was measured: seconds from one completion to the next, and rates, of each side [sides]."""

    cell: Cell
    shares: tuple[float, ...]
    """Share of the multiprocessors that each side could run on."""
    alone_s: tuple[float, ...]
    """Seconds without the others, on its share where there is one."""
    together_s: tuple[float, ...]
    rates: tuple[float, ...]
    """Completions per second beside the others, as a share of those alone."""


class _Header(msgspec.Struct):
    """The first line."""

    fingerprint: dict[str, str]
    options: dict[str, Any]
    places: list[Place]
    visits: Annotated[int, msgspec.Meta(ge=1, le=MAX_VISITS)] = 1


class Points(NamedTuple):
    """Content of a points file."""

    fingerprint: dict[str, str]
    options: dict[str, Json]
    places: list[Place]
    """The plan."""
    points: list[MeasuredPoint]
    """One per place, of all visits to it."""
    clocks: list[Clocks]
    slowed: set[Place]
    """Places of which a visit was slower than the GPU can be, by the driver's word."""
    host: dict[str, Any]
    rates: list[Ran]
    visits: dict[Place, list[MeasuredPoint]]
    """What `points` are made of."""
    num_visits: int = 1
    """Planned for each place."""

    @property
    def left(self) -> list[Place]:
        """Visits that the plan has not had yet, in order: every place once, then all again."""
        rounds = range(self.num_visits)
        return [place for visit in rounds for place in self.places if len(self.visits.get(place, ())) <= visit]


def alone(path: Path) -> AbstractContextManager[None]:
    """Keep other processes from measuring into `path` meanwhile. Raises ValueError if one does already."""
    return locked(path, f"points file {str(path)!r}")


def create(
    path: Path, fingerprint: dict[str, str], options: Mapping[str, Json], places: Sequence[Place], visits: int = 1
) -> None:
    """Write the header, whole or not at all."""
    header = {
        "schema": SCHEMA,
        "fingerprint": fingerprint,
        "options": options,
        "visits": visits,
        "places": [list(place) for place in places],
    }
    write_text(path, json.dumps(header) + "\n")


def append(path: Path, kind: str, content: Json) -> None:
    """Add one line and see it to the disk. Raises ValueError for nan and infinity, and where it cannot be written."""
    line = json.dumps({kind: content}, allow_nan=False) + "\n"
    with naming(path), path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def append_point(path: Path, point: MeasuredPoint) -> None:
    append(path, "point", msgspec.to_builtins(point))


def mend(path: Path) -> None:
    """Cut off a last line that a kill left unfinished. A file of no whole line is none of ours, and stays."""
    content = read_bytes(path, "points file")
    end = content.rfind(b"\n") + 1
    if 0 < end < len(content):
        with naming(path), path.open("r+b") as file:
            file.truncate(end)


def read(path: Path) -> Points:
    """The content; an unfinished last line is ignored. Raises ValueError naming the line that is wrong."""
    text = read_text(path, "points file")
    lines = text.split("\n")[:-1]
    if not lines:
        raise ValueError(f"points file {str(path)!r} is empty or cut off in its first line; remove it")
    header = _object(path, 1, lines[0])
    schema = header.get("schema")
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        hint = "is newer than what this version reads; update lanesim" if newer else f"must be {SCHEMA}"
        raise ValueError(f"points file {str(path)!r}: schema={schema!r} {hint}")
    plan = convert(header, _Header, f"points file {str(path)!r} line 1: no valid header")
    found = Points(plan.fingerprint, plan.options, plan.places, [], [], set(), {}, [], {}, plan.visits)
    planned = frozenset(plan.places)
    for number, line in enumerate(lines[1:], 2):
        where = f"points file {str(path)!r} line {number}"
        for kind, value in _object(path, number, line).items():
            _enter(found, planned, where, kind, value)
    found.points.extend(map(merged, found.visits.values()))
    return found


def _object(path: Path, number: int, line: str) -> dict[str, Json]:
    content = parse_json(line, f"points file {str(path)!r}", number)
    if not isinstance(content, dict):
        raise ValueError(f"points file {str(path)!r} line {number}: must be a JSON object")
    return content


def _enter(found: Points, planned: frozenset[Place], where: str, kind: str, value: Json) -> None:
    if kind == "point":
        point = convert(value, MeasuredPoint, where)
        if place_of(point) not in planned:
            raise ValueError(f"{where}: {place_of(point).name} is not in the plan of line 1")
        found.visits.setdefault(place_of(point), []).append(point)
    elif kind == "clocks":
        clocks = convert(value, Clocks, where)
        found.clocks.append(clocks)
        if clocks.throttled and clocks.place is not None:
            found.slowed.add(clocks.place)
    elif kind == "host":
        found.host.update(convert(value, dict[str, Any], where))
    elif kind == "rates":
        ran = convert(value, Ran, where)
        for key in ("shares", "alone_s", "together_s", "rates"):
            values = getattr(ran, key)
            if len(values) != len(ran.cell.places):
                raise ValueError(f"{where}: {key} has {len(values)} values, want {len(ran.cell.places)}")
            if not all(0.0 < each <= LONGEST_S for each in values):
                raise ValueError(f"{where}: {key} must be positive and at most {LONGEST_S:.0f}, got {list(values)}")
        found.rates.append(ran)
    else:
        raise ValueError(f"{where}: unknown kind of line {kind!r}")


def check_host(path: Path, found: Points) -> None:
    """Raise ValueError where host times are there but not all of them: a measurement writes them at once."""
    missing = [key for key in HOST_KEYS if key not in found.host]
    if found.host and missing:
        raise ValueError(f"points file {str(path)!r}: its host line lacks {missing[0]!r}; remove that line")


def check_same(path: Path, found: Points, fingerprint: dict[str, str], options: Mapping[str, Json]) -> None:
    """Raise ValueError unless `found` was measured on this machine, with as many cores, and with these options."""
    where, advice = f"points file {str(path)!r} is of", "choose another --out or remove it"
    check_alike(f"{where} another machine", fixed(found.fingerprint), fixed(fingerprint), advice)
    check_alike(f"{where} other options", found.options, options, advice)


def check_alike(where: str, held: Mapping[str, Json], ours: Mapping[str, Json], advice: str) -> None:
    """Raise ValueError naming the first key in which `held` is not `ours`."""
    for key in sorted({*held, *ours}):
        if held.get(key) != ours.get(key):
            raise ValueError(f"{where}: {key} was {held.get(key)!r}, is now {ours.get(key)!r}; {advice}")


def fixed(fingerprint: dict[str, str]) -> dict[str, str]:
    """What tells two machines apart."""
    return {key: value for key, value in fingerprint.items() if not key.startswith(MAY_CHANGE)}
