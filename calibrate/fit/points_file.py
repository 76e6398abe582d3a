"""The points file: what one machine measured of one pair, appended line by line, so that a kill loses one visit at
most.

JSON lines. The first is the header: schema, fingerprint, options. Then `plan` (passes to be timed), and in any order
`point` (one per visit to a pass), `host`, `rates` (passes beside each other) and `serving` (what serving adds). Lines
of older files that no fit used are skipped: `mixed` (rows with prompts) and `clocks` (of the GPU, by its driver).
Not here: measuring (calibrate.measure), the profile made of it (sim.costs.profile).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec

from calibrate.fit.point_works import Corun, TimedPass, merged, timed_pass_of
from sim.costs.profile import MeasuredPoint
from sim.files.json_values import Json, convert, parse_json
from sim.files.lock import locked
from sim.files.read import read_bytes, read_text
from sim.files.write import naming, write_text

SCHEMA = 2
MAX_VISITS = 1000
LONGEST_S = 1000.0
"""A pass of more seconds than this is a pass in other units."""
HOST_KEYS = (
    *("is_cpu", "gpu", "multiprocessors", "kv_layout", "date", "kernels_per_layer"),
    *("step_s", "row_s", "inflation_eager"),
)
SKIPPED = ("mixed", "clocks")
MAY_CHANGE = ("clock", "date", "driver")
"""Fingerprint keys beginning so do not tell two machines apart."""
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=LONGEST_S)]


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a co-run: seconds from one completion to the next, medians over all rounds."""

    alone_s: Positive
    """Seconds without the others."""
    rates: Annotated[tuple[Positive, ...], msgspec.Meta(min_length=1)]
    """Completions per second beside the others, as a share of those alone [rounds]."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    corun: Corun
    sides: tuple[Steady, ...]

    @property
    def alone_s(self) -> tuple[float, ...]:
        return tuple(side.alone_s for side in self.sides)

    @property
    def rates(self) -> tuple[float, ...]:
        """Medians over the rounds [sides]."""
        return tuple(median(side.rates) for side in self.sides)


class _Header(msgspec.Struct):
    fingerprint: dict[str, str]
    options: dict[str, Any]


class _Plan(msgspec.Struct):
    passes: list[TimedPass]
    visits: Annotated[int, msgspec.Meta(ge=1, le=MAX_VISITS)] = 1


@dataclass(slots=True, kw_only=True)
class MeasuredSession:
    fingerprint: dict[str, str]
    options: dict[str, Json]
    passes: list[TimedPass] = field(default_factory=list)
    """The plan; empty before there is one."""
    num_visits: int = 1
    """Planned for each pass."""
    visits: dict[TimedPass, list[MeasuredPoint]] = field(default_factory=dict)
    points: list[MeasuredPoint] = field(default_factory=list)
    """One per pass, of all visits to it."""
    host: dict[str, Any] = field(default_factory=dict)
    rates: list[Ran] = field(default_factory=list)
    serving: dict[str, Json] = field(default_factory=dict)
    """Costs of serving, by field; empty before they are known."""

    @property
    def left(self) -> list[TimedPass]:
        """Visits that the plan has not had yet, in order: every pass once, then all again."""
        rounds = range(self.num_visits)
        return [timed for visit in rounds for timed in self.passes if len(self.visits.get(timed, ())) <= visit]


def alone(path: Path) -> AbstractContextManager[None]:
    """Keep other processes from measuring into `path` meanwhile. Raises ValueError if one does already."""
    return locked(path, f"points file {str(path)!r}")


def create(path: Path, fingerprint: dict[str, str], options: Mapping[str, Json]) -> None:
    """Write the header, whole or not at all."""
    write_text(path, json.dumps({"schema": SCHEMA, "fingerprint": fingerprint, "options": options}) + "\n")


def append(path: Path, kind: str, content: object) -> None:
    """Add one line and see it to the disk. Raises ValueError for nan and infinity, and where it cannot be written."""
    line = json.dumps({kind: msgspec.to_builtins(content)}, allow_nan=False) + "\n"
    with naming(path), path.open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def mend(path: Path) -> None:
    """Cut off a last line that a kill left unfinished. A file of no whole line is none of ours, and stays."""
    content = read_bytes(path, "points file")
    end = content.rfind(b"\n") + 1
    if 0 < end < len(content):
        with naming(path), path.open("r+b") as file:
            file.truncate(end)


def read(path: Path) -> MeasuredSession:
    """The content; an unfinished last line is ignored. Raises ValueError naming the line that is wrong."""
    lines = read_text(path, "points file").split("\n")[:-1]
    if not lines:
        raise ValueError(f"points file {str(path)!r} is empty or cut off in its first line. Remove it")
    header = _object(path, 1, lines[0])
    if (schema := header.get("schema")) != SCHEMA:
        is_newer = isinstance(schema, int) and schema > SCHEMA
        hint = "is newer than what this version reads. Update lanesim" if is_newer else f"must be {SCHEMA}"
        raise ValueError(f"points file {str(path)!r}: schema={schema!r} {hint}")
    begun = convert(header, _Header, f"points file {str(path)!r} line 1: no valid header")
    held = MeasuredSession(fingerprint=begun.fingerprint, options=begun.options)
    for number, line in enumerate(lines[1:], 2):
        for kind, value in _object(path, number, line).items():
            _enter(held, f"points file {str(path)!r} line {number}", kind, value)
    held.points.extend(merged(visits) for visits in held.visits.values() if visits)
    return held


def _object(path: Path, number: int, line: str) -> dict[str, Json]:
    content = parse_json(line, f"points file {str(path)!r}", number)
    if not isinstance(content, dict):
        raise ValueError(f"points file {str(path)!r} line {number}: must be a JSON object")
    return content


def _enter(held: MeasuredSession, where: str, kind: str, value: Json) -> None:
    if kind == "plan":
        plan = convert(value, _Plan, where)
        held.passes, held.num_visits = plan.passes, plan.visits
        held.visits = {timed: [] for timed in plan.passes}
    elif kind == "point":
        point = convert(value, MeasuredPoint, where)
        if (visits := held.visits.get(timed_pass_of(point))) is None:
            raise ValueError(f"{where}: {timed_pass_of(point).name} is not in the plan before it")
        visits.append(point)
    elif kind == "rates":
        ran = convert(value, Ran, where)
        if {len(side.rates) for side in ran.sides} != {len(ran.sides[0].rates)} or len(ran.sides) != len(
            ran.corun.passes
        ):
            raise ValueError(f"{where} must have {len(ran.corun.passes)} sides with as many rates each")
        held.rates.append(ran)
    elif kind in ("host", "serving"):
        getattr(held, kind).update(convert(value, dict[str, Any], where))
    elif kind not in SKIPPED:
        raise ValueError(f"{where}: unknown kind of line {kind!r}")


def check_host(path: Path, held: MeasuredSession) -> None:
    """Raise ValueError where host times are there but not all of them: a measurement writes them at once."""
    missing = [key for key in HOST_KEYS if key not in held.host]
    if held.host and missing:
        raise ValueError(f"points file {str(path)!r}: its host line lacks {missing[0]!r}. Remove that line")


def check_same(path: Path, held: MeasuredSession, fingerprint: dict[str, str], options: Mapping[str, Json]) -> None:
    """Raise ValueError unless `held` was measured on this machine, with as many cores, and with these options."""
    where, advice = f"points file {str(path)!r} is of", "Choose another --out or remove it"
    check_alike(f"{where} another machine", fixed(held.fingerprint), fixed(fingerprint), advice)
    check_alike(f"{where} other options", held.options, options, advice)


def check_alike(where: str, held: Mapping[str, Json], ours: Mapping[str, Json], advice: str) -> None:
    """Raise ValueError naming the first key in which `held` is not `ours`."""
    for key in sorted({*held, *ours}):
        if held.get(key) != ours.get(key):
            raise ValueError(f"{where}: {key} was {held.get(key)!r}, is now {ours.get(key)!r}. {advice}")


def fixed(fingerprint: dict[str, str]) -> dict[str, str]:
    """The part of a fingerprint that tells two machines apart."""
    return {key: value for key, value in fingerprint.items() if not key.startswith(MAY_CHANGE)}
