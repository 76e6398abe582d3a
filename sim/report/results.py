"""A results directory: scenario.yaml, summary.json, parquet tables, figures; complete or not there.

Everything is written beside the directory and moved in at the end, summary.json last, so that an interrupted run leaves
nothing that reads as complete. Not here: what the results mean.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sim.experiment.compare import RESULT_SCHEMA, Comparison
from sim.experiment.scenario import Scenario, to_plain
from sim.metrics.records import RunRecord, WorkRecord, request_columns
from sim.report.perfetto import trace_json

SUMMARY = "summary.json"
RESULT_FILES = (
    "scenario.yaml",
    "requests.parquet",
    "work.parquet",
    "trace.json",
    "latency_cdf.png",
    "timeline.png",
    "breakdown.png",
    "occupancy.png",
)
"""All else that a comparison may write: what an earlier one left is removed."""


def check_out(out: Path, digest: str, *, overwrite: bool) -> None:
    """Raise ValueError if `out` cannot take results of the scenario with this hash."""
    if overwrite:
        return
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {str(out)!r} is a file; want a directory")
    summary = out / SUMMARY
    if summary.exists():
        held = _held_hash(out)
        if held != digest:
            raise ValueError(
                f"--out {str(out)!r} holds results of another scenario ({held or 'unreadable'}, now {digest}); "
                "choose another directory or add --overwrite"
            )
    elif out.is_dir() and any(out.iterdir()):
        raise ValueError(f"--out {str(out)!r} is not empty and holds no results; choose another or add --overwrite")


def _held_hash(directory: Path) -> str | None:
    """Hash of the scenario whose results are there; None where there are none that can be read."""
    try:
        held = json.loads((directory / SUMMARY).read_text()).get("scenario_hash")
    except (OSError, ValueError, AttributeError):
        return None
    return held if isinstance(held, str) else None


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A scratch directory whose files are moved into `out` if the block succeeds, and dropped if not.

    What an earlier run left there goes; pictures of the same scenario stay where no new ones are drawn.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield scratch
        out.mkdir(exist_ok=True)
        is_rerun = _held_hash(out) == _held_hash(scratch) is not None
        for name in (SUMMARY, *RESULT_FILES):
            if not (is_rerun and name.endswith(".png")):
                (out / name).unlink(missing_ok=True)
        names = sorted(path.name for path in scratch.iterdir())
        for name in sorted(names, key=lambda name: name == SUMMARY):
            os.replace(scratch / name, out / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_results(directory: Path, scenario: Scenario, result: dict[str, Any], records: Sequence[RunRecord]) -> None:
    """scenario.yaml, requests.parquet, work.parquet and trace.json where works were recorded, and summary.json."""
    import yaml

    (directory / "scenario.yaml").write_text(yaml.safe_dump(to_plain(scenario), sort_keys=False))
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
        (directory / "trace.json").write_text(trace_json(with_works))
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
    try:
        result = json.loads(path.read_text())
    except OSError:
        raise ValueError(f"{str(directory)!r} holds no {SUMMARY}: want what `lanesim compare --out` wrote") from None
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not valid JSON: {error}") from None
    if not isinstance(result, dict) or "policies" not in result:
        raise ValueError(f"{str(path)!r} is no result of `lanesim compare`")
    if result.get("schema") != RESULT_SCHEMA:
        raise ValueError(f"{str(path)!r}: schema={result.get('schema')!r} must be {RESULT_SCHEMA}")
    try:
        return msgspec.convert(result, Comparison)
    except msgspec.ValidationError as error:
        raise ValueError(f"{str(path)!r}: {error}") from None


def to_json(result: dict[str, Any]) -> str:
    """JSON text, on one line if it holds per-request lists; a nan or infinity in it is a defect and raises."""
    is_detailed = any("ttfts" in run for run in result.get("runs", ()))
    return json.dumps(result, indent=None if is_detailed else 1, allow_nan=False) + "\n"


def _joined(tables: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    return {name: [value for table in tables for value in table[name]] for name in tables[0]}
