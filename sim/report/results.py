"""A results directory: scenario.yaml, summary.json, parquet tables, figures; complete or not there.

It is written beside its place and takes it by one rename, so that the old one is there whole until the new one is.
Not here: how that is done (sim.files.write), what the results mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from sim.experiment.compare import RESULT_SCHEMA, Comparison
from sim.experiment.scenario import Scenario, to_plain
from sim.files.json_values import convert, parse_json
from sim.files.read import Unreadable, read_text
from sim.files.write import new_folder
from sim.files.yaml_values import yaml_text
from sim.metrics.records import RunRecord, WorkRecord, request_columns
from sim.report.perfetto import trace_json

SUMMARY = "summary.json"
TRACE = "trace.json"
RESULT_FILES = (
    "scenario.yaml",
    "requests.parquet",
    "work.parquet",
    TRACE,
    "latency_cdf.png",
    "timeline.png",
    "breakdown.png",
    "occupancy.png",
    "profile.json",
)
"""All else that a comparison may write: what an earlier one left is removed."""


OWN_FILES = (SUMMARY, *RESULT_FILES)


def check_out(out: Path, digest: str, *, overwrite: bool, is_replay: bool = False) -> None:
    """Raise ValueError if `out` cannot take results of the scenario with this hash: what is there is of another one, or
    was measured (`is_replay`) where this is simulated, or the other way round."""
    if find_spec("pyarrow") is None:
        raise ValueError("--out writes parquet and needs the analysis extra: pip install 'lanesim[analysis]'")
    if overwrite or not out.is_dir():
        return
    if not (out / SUMMARY).exists():
        if any(out.iterdir()):
            raise ValueError(f"--out {str(out)!r} is not empty and holds no results; choose another or add --overwrite")
        return
    held = _held(out)
    if held.digest != digest:
        raise ValueError(
            f"--out {str(out)!r} holds results of another scenario ({held.digest or 'unreadable'}, now {digest}); "
            "choose another directory or add --overwrite"
        )
    if held.is_replay != is_replay:
        kinds = ("a simulation", "a replay")
        raise ValueError(
            f"--out {str(out)!r} holds {kinds[held.is_replay]} of this scenario, and this is {kinds[is_replay]}; "
            "choose another directory or add --overwrite"
        )


def place_of(out: Path, *, is_partial: bool) -> Path:
    """Where results belong: `out`, or beside it where they are partial and those that are there are complete."""
    if is_partial and (out / SUMMARY).exists() and not _held(out).is_partial:
        return out.with_name(f"{out.name}.partial")
    return out


def others_of(directory: Path) -> list[Path]:
    """What of a results directory no other output may be written over: all but its trace and its pictures."""
    return [directory / name for name in OWN_FILES if name != TRACE and not name.endswith(".png")]


class _Held(msgspec.Struct):
    """What a summary says of itself; nothing where it cannot be read."""

    digest: str | None = None
    is_replay: bool = False
    is_partial: bool = False


def _held(directory: Path) -> _Held:
    path = directory / SUMMARY
    try:
        summary = parse_json(read_text(path, "summary"), "summary")
        replay = summary.get("replay")
        digest = summary.get("scenario_hash")
        is_partial = isinstance(replay, dict) and replay.get("partial") is True
        return _Held(digest if isinstance(digest, str) else None, replay is not None, is_partial)
    except (ValueError, AttributeError):
        return _Held()


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
    return name.endswith(".png") and _held(out).digest == _held(scratch).digest is not None


def write_results(directory: Path, scenario: Scenario, result: dict[str, Any], records: Sequence[RunRecord]) -> None:
    """scenario.yaml, requests.parquet, work.parquet and trace.json where works were recorded, and summary.json."""
    (directory / "scenario.yaml").write_text(yaml_text(to_plain(scenario)))
    write_parquet(directory / "requests.parquet", _joined([request_columns(record) for record in records]))
    with_works = [record for record in records if record.works]
    if with_works:
        columns: dict[str, list[Any]] = {"policy": [], "seed": []}
        for record in with_works:
            columns["policy"] += [record.policy] * len(record.works)
            columns["seed"] += [record.seed] * len(record.works)
        for name in WorkRecord.__dataclass_fields__:
            columns[name] = [getattr(work, name) for record in with_works for work in record.works]
        write_parquet(directory / "work.parquet", columns)
        (directory / TRACE).write_text(trace_json(with_works))
    (directory / SUMMARY).write_text(to_json(result))


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    """One parquet file; nan becomes null. Raises ValueError if pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError("--out writes parquet and needs the analysis extra: pip install 'lanesim[analysis]'") from None
    table = pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})
    pq.write_table(table, path, compression="zstd")


def read_columns(path: Path) -> dict[str, list[Any]]:
    """The columns of a parquet file of a results directory. Raises ValueError naming the file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError("reading results needs the analysis extra: pip install 'lanesim[analysis]'") from None
    if not path.exists():
        raise ValueError(f"{str(path)!r} does not exist: want a results directory that `lanesim compare --out` wrote")
    try:
        columns: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error}") from None
    return columns


def read_summary(directory: Path) -> Comparison:
    """summary.json of a results directory. Raises ValueError naming what is wrong."""
    path = directory / SUMMARY
    where = f"summary {str(path)!r}"
    try:
        text = read_text(path, "summary")
    except Unreadable as error:
        raise ValueError(
            f"{str(directory)!r} holds no results ({error}): want what `lanesim compare --out` wrote"
        ) from None
    result = parse_json(text, where)
    if not isinstance(result, dict) or "policies" not in result:
        raise ValueError(f"{where} is no result of `lanesim compare`")
    if result.get("schema") != RESULT_SCHEMA:
        raise ValueError(f"{where}: schema={result.get('schema')!r} must be {RESULT_SCHEMA}")
    return convert(result, Comparison, where, text)


def to_json(result: dict[str, Any]) -> str:
    """JSON text, on one line if it holds per-request lists; a nan or infinity in it is a defect and raises."""
    is_detailed = any("ttfts" in run for run in result.get("runs", ()))
    return json.dumps(result, indent=None if is_detailed else 1, allow_nan=False) + "\n"


def _joined(tables: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}
