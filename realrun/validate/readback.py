"""A replay's results directory, read back for comparison. No torch.

Not here: writing it (realrun.replay.replays), judging it (realrun.validate.error_parts).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from realrun.replay.measured_costs import MeasuredWork, WakeLatency
from realrun.validate.error_parts import Observed
from sim.compare.side_by_side import RESULT_SCHEMA
from sim.costs.profile import Profile
from sim.files.json_values import convert, parse_json
from sim.files.read import Unreadable, read_text
from sim.metrics.compared import LATENCIES, STATISTICS, THROUGHPUT
from sim.metrics.records import WorkRecord
from sim.report.results import REAL_COLUMNS, SUMMARY, WORKS, read_columns
from sim.run.experiment import Experiment
from sim.run.resolve import resolve
from sim.run.scenario import PlainScenario, Scenario, parse_scenario

Columns = Mapping[str, list[Any]]
METRICS = (*(key.format(name) for name in LATENCIES for key in STATISTICS.values()), THROUGHPUT)
"""Keys of a run that are compared."""


class _Run(msgspec.Struct):
    policy: str
    seed: int
    duration: float


class _About(msgspec.Struct):
    """Facts of a run that a replay states beside its metrics."""

    policy: str
    seed: int
    plain_wake_s: float
    polled_wake_s: float
    probed_s: list[list[float]] = []


class _Replay(msgspec.Struct):
    acceptance: Literal["tape", "model"]
    slots: int
    runs: list[_About]
    partial: bool


class _Summary(msgspec.Struct):
    """Keys of summary.json that are needed."""

    scenario: PlainScenario
    scenario_hash: str
    runs: Annotated[list[_Run], msgspec.Meta(min_length=1)]
    replay: _Replay


def read_summary(directory: Path) -> tuple[Scenario, dict[str, Any]]:
    """The scenario that was replayed, and the summary. Raises ValueError, one line, for anything else."""
    path = directory / SUMMARY
    where = f"summary {str(path)!r}"
    try:
        summary = parse_json(read_text(path, "summary"), where)
    except Unreadable as error:
        raise ValueError(f"{error}. Give a directory of `lanesim replay`") from None
    if not isinstance(summary, dict) or "replay" not in summary:
        raise ValueError(f"{str(directory)!r} holds no replay (no `replay` in {SUMMARY}). Give one of `lanesim replay`")
    if summary.get("schema") != RESULT_SCHEMA:
        raise ValueError(f"{where}: schema={summary.get('schema')!r} must be {RESULT_SCHEMA}")
    stated = convert(summary, _Summary, where)
    if [(run.policy, run.seed) for run in stated.runs] != [(run.policy, run.seed) for run in stated.replay.runs]:
        raise ValueError(f"{where}: `runs` and `replay.runs` are not of the same policies and seeds")
    for run, key in product(summary["runs"], METRICS):
        if not isinstance(value := run.get(key, "absent"), float | int | None):
            raise ValueError(f"{where}: {key}={value!r:.40} of {run['policy']} must be a number or null")
    try:
        return parse_scenario(stated.scenario), summary
    except ValueError as error:
        raise ValueError(f"{where}: scenario: {error}") from None


def read_replay(directory: Path, scenario: Scenario, summary: Mapping[str, Any], profile: Profile) -> list[Observed]:
    """Every run of the replay, to be simulated with `profile`."""
    works = read_columns(directory / WORKS, REAL_COLUMNS)
    for row, (served, emitted) in enumerate(zip(works["requests"], works["emitted"], strict=True)):
        if len(served) != len(emitted):
            raise ValueError(
                f"results {str(directory / WORKS)!r}: column 'emitted' has {len(emitted)} values in row {row}, and "
                f"'requests' has {len(served)}"
            )
    observed = []
    for run, about in zip(summary["runs"], summary["replay"]["runs"], strict=True):
        policy, seed = run["policy"], run["seed"]
        observed.append(
            Observed(
                experiment=Experiment(
                    resolve(scenario, profile, policy, num_slots=summary["replay"]["slots"]),
                    seed,
                    is_dictated=summary["replay"]["acceptance"] == "tape",
                ),
                run=run,
                works=[_work(row) for row in _rows(works, policy, seed)],
                wake=WakeLatency(about["plain_wake_s"], about["polled_wake_s"]),
                probed_s=about.get("probed_s", []),
            )
        )
    return observed


def _rows(columns: Columns, policy: str, seed: int) -> list[dict[str, Any]]:
    """Rows of one run; what is null was nan."""
    rows = [
        {name: nan if value is None else value for name, value in zip(columns, values, strict=True)}
        for values in zip(*columns.values(), strict=True)
    ]
    return [row for row in rows if row["policy"] == policy and row["seed"] == seed]


def _work(row: Mapping[str, Any]) -> MeasuredWork:
    values = {name: row[name] for name in WorkRecord.__struct_fields__}
    return MeasuredWork(
        record=WorkRecord(**values | {"requests": tuple(values["requests"])}),
        eligible_s=row["eligible_s"],
        reacted_s=row["reacted_s"],
        emitted=tuple(row["emitted"]),
        accepted=tuple(row.get("accepted", ())),
    )
