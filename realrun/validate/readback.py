"""A replay's results directory, read back for comparison. No torch.

Not here: writing it (realrun.replay.run), judging it (realrun.validate.compare).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

from realrun.replay.measured import MeasuredWork
from realrun.replay.measured_host import WakeLatency
from realrun.validate.compare import Observed
from sim.costs.profile import Profile
from sim.experiment.assemble import Experiment
from sim.experiment.compare import RESULT_SCHEMA
from sim.experiment.scenario import Scenario, resolve
from sim.experiment.scenario_file import read_scenario
from sim.metrics.records import WorkRecord
from sim.report.results import SUMMARY, read_columns
from sim.seam.request import Request

Columns = Mapping[str, list[Any]]
REQUEST_FIELDS = (
    "index",
    "id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "emitted_tokens",
    "scheduled_s",
    "first_token_s",
    "last_token_s",
    "num_rounds",
    "drafted_tokens",
    "accepted_tokens",
)


def read_summary(directory: Path) -> tuple[Scenario, dict[str, Any]]:
    """Scenario and summary of a replay. Raises ValueError, one line, for anything else."""
    path = directory / SUMMARY
    try:
        summary = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{str(path)!r}: {error.strerror or error}; want a directory of `lanesim replay`") from None
    except ValueError:
        raise ValueError(f"{str(path)!r} is not valid JSON") from None
    if not isinstance(summary, dict) or "replay" not in summary:
        raise ValueError(f"{str(directory)!r} holds no replay (no `replay` in {SUMMARY}); want one of `lanesim replay`")
    if summary.get("schema") != RESULT_SCHEMA:
        raise ValueError(f"{str(path)!r}: schema={summary.get('schema')!r} must be {RESULT_SCHEMA}")
    scenario = resolve(read_scenario(directory / "scenario.yaml"))
    if scenario.digest != summary.get("scenario_hash"):
        raise ValueError(
            f"{str(directory)!r}: scenario.yaml ({scenario.digest}) is not the scenario that was replayed "
            f"({summary.get('scenario_hash')})"
        )
    return scenario, summary


def read_replay(directory: Path, scenario: Scenario, summary: Mapping[str, Any], profile: Profile) -> list[Observed]:
    """Every run of the replay, to be simulated with `profile`."""
    requests = read_columns(directory / "requests.parquet")
    works = read_columns(directory / "work.parquet")
    observed = []
    for run, about in zip(summary["runs"], summary["replay"]["runs"], strict=True):
        policy, seed = run["policy"], run["seed"]
        observed.append(
            Observed(
                experiment=Experiment(
                    scenario=scenario,
                    policy_name=policy,
                    seed=seed,
                    profile=profile,
                    num_slots=summary["replay"]["slots"],
                    is_dictated=summary["replay"]["acceptance"] == "tape",
                ),
                run=run,
                requests=[_request(row) for row in _rows(requests, policy, seed)],
                works=[_work(row) for row in _rows(works, policy, seed)],
                wake=WakeLatency(about["plain_wake_s"], about["polled_wake_s"]),
                is_partial=about["partial"],
                probed_s=about.get("probed_s", []),
            )
        )
    return observed


def _rows(columns: Columns, policy: str, seed: int) -> list[dict[str, Any]]:
    """Rows of one run; what is null was nan."""
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    kept = [dict(zip(names, row, strict=True)) for row in rows]
    return [
        {name: nan if value is None else value for name, value in row.items()}
        for row in kept
        if row["policy"] == policy and row["seed"] == seed
    ]


def _request(row: Mapping[str, Any]) -> Request:
    return Request(**{name: row[name] for name in REQUEST_FIELDS})


def _work(row: Mapping[str, Any]) -> MeasuredWork:
    values = {name: row[name] for name in WorkRecord.__dataclass_fields__}
    return MeasuredWork(
        record=WorkRecord(**values | {"requests": tuple(values["requests"])}),
        eligible_s=row["eligible_s"],
        reacted_s=row["reacted_s"],
        padded_tokens=row["padded_tokens"],
        emitted=tuple(row["emitted"]),
        accepted=tuple(row.get("accepted", ())),
    )
