"""A grid: a scenario, and for some of its keys the values to go through, expanded one scenario at a time.

    scenario: {profile: h100-sxm/llama-3.1-8b+llama-3.2-1b, policy: [continuous, pd], workload: {num_prompts: 300}}
    grid:
      workload.request_rate: [1, 2, 4]
      speculation.num_speculative_tokens: [0, 2, 4]
    zip:
      - {engine.max_num_seqs: [64, 256], engine.max_num_batched_tokens: [2048, 8192]}
    replications: 3

Keys of `grid` are gone through in all combinations; the lists of one `zip` group side by side, in combination with all
else. Each policy is a point. Not here: running it (sweep).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from sim.files.json_values import Json
from sim.names import unknown
from sim.plugins import shown
from sim.run.scenario import Scenario, parse_scenario
from sim.run.scenario_file import FLAT_NAMES, read_scenario, set_dotted
from sim.workload.generate import Workload

KEYS = ("scenario", "grid", "zip", "replications")
CONDITIONS = ("workload.", "speculation.acceptance", "speculation.synthetic_", "window.", "goodput.")
"""Beginnings of keys that nobody chooses: load, lengths, acceptance. All others are settings."""
CHECKED_WHOLE = 10_000
"""Scenarios up to which every combination is checked before the first run, not only every value."""
FASTEST = {"workload.request_rate", "seed"}
"""Varied last: points that differ in these alone share the measured capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Keys that vary together, and the values they have together: `rows` [values][keys]."""

    keys: tuple[str, ...]
    rows: tuple[tuple[Json, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid file, checked; `raw` is its scenario as raw data.

    >>> grid = Grid.of({"scenario": {"profile": "cpu/tiny", "policy": "pd"}, "grid": {"workload.request_rate": [1, 2]}})
    >>> grid.num_scenarios, [scenario.workload.request_rate for scenario in grid.scenarios()]
    (2, [1.0, 2.0])
    """

    source: dict[str, Json]
    raw: dict[str, Json]
    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, source: Mapping[str, Json] | str | Path) -> Grid:
        """A grid from a file or raw mapping. Raises ValueError, one line naming the key."""
        if isinstance(source, str | Path):
            raw = read_scenario(Path(source))
            try:
                return cls._of(raw, Path(source).parent)
            except ValueError as error:
                raise ValueError(f"grid file {str(source)!r}: {error}") from None
        if not isinstance(source, Mapping):
            raise ValueError(f"grid {shown(source)} must be a mapping of keys, or the path of a file")
        return cls._of(source, Path())

    @classmethod
    def _of(cls, raw: Mapping[str, Json], folder: Path) -> Grid:
        for key in raw:
            if key not in KEYS:
                raise ValueError(unknown("key of a grid file", str(key), KEYS))
        scenario = raw.get("scenario")
        if isinstance(scenario, str):
            scenario = read_scenario(folder / scenario)
        if not isinstance(scenario, Mapping):
            raise ValueError("scenario must be a block of keys, or the path of a scenario file")
        given = {"replications": raw["replications"]} if "replications" in raw else {}
        if not given.keys().isdisjoint(scenario):
            raise ValueError("replications: given twice, in the scenario and beside it")
        axes = _axes(raw.get("grid") or {}, raw.get("zip") or [], scenario)
        grid = cls(source={**raw, "scenario": dict(scenario)}, raw={**scenario, **given}, axes=tuple(axes))
        grid._check()
        return grid

    @property
    def keys(self) -> list[str]:
        return [key for axis in self.axes for key in axis.keys]

    def values_of(self, key: str) -> list[str]:
        """The values that a dotted key takes on, as texts; none where the grid does not say."""
        for axis in self.axes:
            if key in axis.keys:
                return list(dict.fromkeys(str(row[axis.keys.index(key)]) for row in axis.rows))
        value: Json = self.raw
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return [] if value is None else [str(value)]

    @property
    def num_scenarios(self) -> int:
        return prod(len(axis.rows) for axis in self.axes)

    @property
    def num_runs(self) -> int:
        """Replications counted; where they vary over the grid, as often as each value comes."""
        for axis in self.axes:
            if "replications" in axis.keys:
                column = axis.keys.index("replications")
                total = sum(msgspec.convert(row[column], int, strict=False) for row in axis.rows)
                return self.num_scenarios // len(axis.rows) * total
        return self.num_scenarios * self._resolved([axis.rows[0] for axis in self.axes]).replications

    def workloads(self) -> Iterator[Workload]:
        """One for each dataset that the grid goes through."""
        of_data = [
            axis.rows
            if any(key == "workload" or key.startswith("workload.dataset") for key in axis.keys)
            else axis.rows[:1]
            for axis in self.axes
        ]
        for rows in product(*of_data):
            yield self._resolved(rows).workload

    def scenarios(self) -> Iterator[Scenario]:
        """Every combination, one at a time, each with one policy. Raises ValueError naming the combination."""
        for rows in product(*(axis.rows for axis in self.axes)):
            yield self._resolved(rows)

    def _resolved(self, rows: Sequence[tuple[Json, ...]]) -> Scenario:
        raw, values = copy.deepcopy(self.raw), dict(zip(self.keys, chain.from_iterable(rows), strict=True))
        try:
            for key, value in values.items():
                set_dotted(raw, key, value)
            return parse_scenario(raw)
        except ValueError as error:
            at = ", ".join(f"{key}={value}" for key, value in values.items())
            raise ValueError(f"grid at {at}: {error}") from None

    def _check(self) -> None:
        """Every value once, in the company of the others' first; every combination where they are few."""
        first = [axis.rows[0] for axis in self.axes]
        for axis_index, axis in enumerate(self.axes):
            for row in axis.rows:
                self._resolved([*first[:axis_index], row, *first[axis_index + 1 :]])
        if self.num_scenarios <= CHECKED_WHOLE:
            for _ in self.scenarios():
                pass


def _axes(product_of: Json, zipped: Json, scenario: Mapping[str, Json]) -> Iterator[Axis]:
    groups = [zipped] if isinstance(zipped, Mapping) else zipped
    if not isinstance(product_of, Mapping):
        raise ValueError("grid must be a block of dotted keys with a list of values each")
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) and group for group in groups):
        raise ValueError("zip must be a list of blocks, each of dotted keys with lists of the same length")
    axes = [_axis({key: values}) for key, values in product_of.items()] + [_axis(group) for group in groups]
    keys = [key for axis in axes for key in axis.keys]
    if twice := [key for index, key in enumerate(keys) if key in keys[:index]]:
        raise ValueError(f"{twice[0]}: is gone through twice")
    if "policy" not in keys and (policies := scenario.get("policy")):
        axes.append(_axis({"policy": policies if isinstance(policies, list | tuple) else [policies]}))
    yield from sorted(axes, key=lambda axis: not FASTEST.isdisjoint(axis.keys))


def _axis(lists: Mapping[str, Any]) -> Axis:
    """Keys with lists of values that vary together; a list of policies instead of one is a row for each."""
    for key, values in lists.items():
        if not isinstance(values, list | tuple):
            raise ValueError(f"{key} must be a list of values, got {values!r}")
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{key}: {length}" for key, length in lengths.items())
        raise ValueError(f"zip: lists of one group must be equally long, got {got}")
    # A block of keys stands for itself, whatever flag has its name.
    keys = tuple(
        key if values and isinstance(values[0], Mapping) else FLAT_NAMES.get(key, key) for key, values in lists.items()
    )
    rows = list(zip(*lists.values(), strict=True))
    if "policy" in keys:
        at = keys.index("policy")
        named = [(row, row[at] if isinstance(row[at], list | tuple) else [row[at]]) for row in rows]
        rows = [(*row[:at], policy, *row[at + 1 :]) for row, policies in named for policy in policies]
    if not rows:
        raise ValueError(f"{', '.join(keys)}: the list is empty, so there is nothing to run")
    seen = set()
    for row in rows:
        same = tuple(value if isinstance(value, str | int | float | None) else repr(value) for value in row)
        if same in seen:
            raise ValueError(f"{', '.join(keys)}: {', '.join(map(repr, row))} stands twice")
        seen.add(same)
    return Axis(keys=keys, rows=tuple(rows))
