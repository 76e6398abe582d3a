"""A results directory: scenario.yaml, summary.json, parquet tables and figures, complete or absent.

It is written beside its path and takes it by one rename, so that the old one is there whole until the new one is.
Not here: how that is done (sim.files.write), what the results mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any

import msgspec

from sim.bounds import LARGEST
from sim.compare.side_by_side import PAIRED_METRICS, RESULT_SCHEMA, Comparison
from sim.files.arrow_tables import Columns, join_parquet, read_parquet, writing_parquet
from sim.files.json_values import Json, convert, read_json, value_at
from sim.files.read import CONTROL, Unreadable
from sim.files.write import new_folder
from sim.files.yaml_values import yaml_text
from sim.metrics.records import RunRecord, WorkRecord, request_parts
from sim.metrics.summary import DETAILS
from sim.report.perfetto import recorded_runs, trace_json
from sim.run.scenario import Scenario, to_plain

SUMMARY = "summary.json"
TRACE = "trace.json"
REQUESTS = "requests.parquet"
WORKS = "work.parquet"
RESULT_FILES = ("scenario.yaml", REQUESTS, WORKS, TRACE, "timeline.png", "profile.json")
"""All else that a comparison may write: what an earlier one left is removed."""


OWN_FILES = (SUMMARY, *RESULT_FILES)


def place_of(out: Path, *, is_partial: bool) -> Path:
    """Folder of results: `out`, or beside it where they are partial and those that are there are complete."""
    if is_partial and (out / SUMMARY).exists() and _mark(out, "replay.partial") is not True:
        return out.with_name(f"{out.name}.partial")
    return out


def others_of(directory: Path) -> list[Path]:
    """Files of a results directory that no other output may be written over: all but its trace and its pictures."""
    return [directory / name for name in OWN_FILES if name != TRACE and not name.endswith(".png")]


def _mark(directory: Path, key: str) -> Json:
    """The value at a dotted key of a summary; None where it cannot be read."""
    try:
        return value_at(read_json(directory / SUMMARY, "summary"), key)
    except ValueError:
        return None


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A scratch directory that becomes `out` if the block succeeds, and is dropped if not.

    What an earlier run left there goes; what is not ours stays, and so do pictures of the same scenario where no new
    ones are drawn.
    """
    with new_folder(out, keeps=lambda name: _stays(name, out, scratch)) as scratch:
        yield scratch


def _stays(name: str, out: Path, scratch: Path) -> bool:
    if name not in OWN_FILES:
        return True
    return name.endswith(".png") and _mark(out, "scenario_hash") == _mark(scratch, "scenario_hash") is not None


@contextmanager
def rows_of(directory: Path) -> Iterator[Path]:
    """A directory for the requests of each run, Parquet files that become requests.parquet at the end of the block."""
    parts = directory / "rows"
    parts.mkdir()
    yield parts
    join_parquet(sorted(parts.iterdir()), directory / REQUESTS)
    rmtree(parts)


def write_results(
    directory: Path, scenario: Scenario, result: Mapping[str, Json], records: Sequence[RunRecord]
) -> None:
    """scenario.yaml, requests.parquet unless it is there, work.parquet and trace.json where works were recorded, and
    summary.json."""
    (directory / "scenario.yaml").write_text(yaml_text(to_plain(scenario)))
    if not (directory / REQUESTS).exists():
        with writing_parquet(directory / REQUESTS) as write:
            for record in records:
                for columns in request_parts(record):
                    write(columns)
    with_works = [record for record in records if record.works]
    if with_works:
        works = [(record, work) for record in with_works for work in record.works]
        columns = {name: [getattr(record, name) for record, _ in works] for name in ("policy", "seed")}
        columns |= {name: [getattr(work, name) for _, work in works] for name in WorkRecord.__struct_fields__}
        write_parquet(directory / WORKS, columns)
        (directory / TRACE).write_text(trace_json(recorded_runs(with_works)))
    (directory / SUMMARY).write_text(to_json(result))


def write_parquet(path: Path, columns: Columns) -> None:
    """One parquet file; nan becomes null. Raises ValueError if pyarrow is not installed."""
    with writing_parquet(path) as write:
        write(columns)


Count = Annotated[int, msgspec.Meta(ge=0)]
Time = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
COLUMNS: dict[str, dict[str, Any]] = {
    REQUESTS: dict.fromkeys(("policy", "id"), list[str])
    | dict.fromkeys(("seed", "index", "prompt_tokens", "output_tokens", "emitted_tokens"), list[Count])
    | dict.fromkeys(("num_rounds", "drafted_tokens", "accepted_tokens"), list[Count])
    | dict.fromkeys(("scheduled_s", "first_token_s", "last_token_s"), list[Time | None])
    | {"arrival_s": list[Time], "is_censored": list[bool]},
    WORKS: dict.fromkeys(("policy", "kind", "model", "stream", "device"), list[str])
    | dict.fromkeys(("seed", "rows", "row_tokens", "context_tokens", "chunk_tokens", "draft_tokens"), list[Count])
    | dict.fromkeys(("submitted_s", "issue_start_s", "issued_s", "start_s", "end_s", "ready_s"), list[Time])
    | {"is_cancelled": list[bool], "requests": list[list[Count]]},
}
"""Values of columns; a file may have more."""
REAL_COLUMNS = {"eligible_s": list[Time], "reacted_s": list[Time | None]}
REAL_COLUMNS |= dict.fromkeys(("emitted", "accepted"), list[list[Count]])
"""Those of works that a replay adds."""


def read_columns(path: Path, more: Mapping[str, Any] = {}) -> dict[str, list[Any]]:
    """The columns of requests.parquet or work.parquet of a results directory, checked; `more` are needed, too.

    Raises ValueError naming file, column and row.
    """
    where = f"results {str(path)!r}"
    if not path.exists():
        raise ValueError(f"{where} do not exist. Give a directory that `lanesim compare --out` wrote")
    columns: dict[str, list[Any]] = read_parquet(path, "results").to_pydict()
    for name, kind in {**COLUMNS[path.name], **more}.items():
        if name not in columns:
            raise ValueError(f"{where}: no column {name!r}")
        columns[name] = convert(columns[name], kind, f"{where}: column {name!r}")
        if kind == list[str] and any(map(CONTROL.search, set(columns[name]))):
            raise ValueError(f"{where}: column {name!r} holds a control character")
    return columns


def read_summary(directory: Path) -> Comparison:
    """summary.json of a results directory. Raises ValueError naming what is wrong."""
    try:
        return read_summary_file(directory / SUMMARY)
    except Unreadable as error:
        raise ValueError(f"{error}. Give a results directory that `lanesim compare --out` wrote") from None


def read_summary_file(path: Path) -> Comparison:
    """Comparison that `compare` wrote as JSON, wherever it is. Raises ValueError, Unreadable among them."""
    where = f"summary {str(path)!r}"
    result = read_json(path, "summary")
    if not isinstance(result, dict) or "policies" not in result:
        raise ValueError(f"{where} is no result of `lanesim compare`")
    if result.get("schema") != RESULT_SCHEMA:
        raise ValueError(f"{where}: schema={result.get('schema')!r} must be {RESULT_SCHEMA}")
    summary = convert(result, Comparison, where)
    if not summary.policies or not summary.runs:
        raise ValueError(f"{where}: no policy or no run in it")
    for row in summary.policies:
        if lacking := [metric for metric in PAIRED_METRICS if metric not in row.mean]:
            raise ValueError(f"{where}: policy {row.policy!r} has no {lacking[0]!r} among its means")
    return summary


def is_replay(directory: Path) -> bool:
    """The results were measured."""
    return _mark(directory, "replay") is not None


def to_json(result: Mapping[str, Json]) -> str:
    """JSON text, on one line if it holds per-request lists; a nan or infinity beside them is a defect and raises."""
    runs = result.get("runs")
    if isinstance(runs, list) and any("ttfts" in run for run in runs):
        others = [{key: value for key, value in run.items() if key not in DETAILS} for run in runs]
        json.dumps({**result, "runs": others}, allow_nan=False)
        return msgspec.json.encode(result).decode() + "\n"
    return json.dumps(result, indent=1, allow_nan=False) + "\n"
