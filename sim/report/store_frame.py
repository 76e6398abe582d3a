"""A store as a tidy pandas frame: a row per point, columns for what was gone through, units in the metrics' names.

Imports pandas inside functions. Not here: the store (sim.studies.sweeps.store), pictures
(sim.report.pictures.store_pictures).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.files.json_values import parse_json
from sim.studies.sweeps.store import Store
from sim.studies.sweeps.store_rows import SCENARIO, Row

if TYPE_CHECKING:
    import pandas as pd

UNITS = {
    "duration": "duration_s",
    "request_throughput": "request_throughput_per_s",
    "output_throughput": "output_throughput_tokens_per_s",
    "steady_output_throughput": "steady_output_throughput_tokens_per_s",
    "output_throughput_per_gpu": "output_throughput_per_gpu_tokens_per_s",
    "steady_output_throughput_per_gpu": "steady_output_throughput_per_gpu_tokens_per_s",
    "total_token_throughput": "total_token_throughput_tokens_per_s",
    "request_goodput": "request_goodput_per_s",
    "throughput_completed_window": "throughput_completed_window_tokens_per_s",
    "throughput_emitted_window": "throughput_emitted_window_tokens_per_s",
    "spec_decode_acceptance_length": "acceptance_length_tokens",
    "spec_decode_acceptance_rate": "acceptance_rate_pct",
}
"""Columns of frames for vLLM's keys that do not name their unit."""
FIRST = ("scenario_hash", "policy", "seed", "replication")
LAST = ("error", "notes", "model_version", "profile_hash", "key")
ALWAYS = ("profile",)
"""Keys of the scenario that have a column whether they vary or not."""


def store_frame(path: Path, *, version: str | None = None) -> pd.DataFrame:
    """The rows of the store at `path` that one `version` of the model made, by default the one it was used with last.

    Columns: `scenario_hash`, `policy`, `seed`, `replication`, every key of the scenario that a grid goes through or
    that varies, the metrics with units in their names, `error` (null where the point ran), and what made the row.
    Raises ValueError where there is no store.
    """
    store = Store(path)
    grids = store.grids()
    frame = frame_of(store.rows(), [key for run in grids for key in run.keys])
    is_asked = version is not None
    if version is None and grids:
        version = grids[-1].model_version
    rows = frame[frame["model_version"] == version] if version is not None and len(frame) else frame
    if len(rows) < len(frame) and not is_asked:
        others = sorted(set(frame["model_version"]) - {version})
        warnings.warn(
            f"{str(path)!r}: {len(frame) - len(rows)} rows are of other versions of the model ({', '.join(others)}) "
            f"and left out. load(..., version=...) has them",
            stacklevel=3,
        )
    return rows.reset_index(drop=True)


def frame_of(rows: Sequence[Row], swept: Sequence[str]) -> pd.DataFrame:
    """The same of rows in memory; `swept` are keys of the scenario that have a column in any case."""
    import pandas as pd

    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in names}
    decoded: dict[str, list[Any]] = {}
    for name, values in columns.items():
        key = name.removeprefix(SCENARIO)
        texts = list(dict.fromkeys(values))
        if name.startswith(SCENARIO) and (len(texts) > 1 or key in swept or key in ALWAYS):
            known = {text: plain_value(text, key) for text in texts}
            decoded[key] = [known[text] for text in values]
    # What the row says itself wins: its seed is the replication's.
    varied = {key: values for key, values in decoded.items() if key not in columns}
    metrics = [name for name in columns if not name.startswith(SCENARIO) and name not in (*FIRST, *LAST)]
    data = {name: list(columns[name]) for name in FIRST if name in columns} | varied
    data |= {_with_unit(name): list(columns[name]) for name in metrics}
    data |= {name: list(columns[name]) for name in LAST if name in columns}
    frame = pd.DataFrame(data)
    for name in frame.columns[: len(FIRST) + len(varied)]:
        if frame[name].dtype == object and frame[name].notna().all():
            frame[name] = frame[name].infer_objects()
    for name in frame.columns[len(FIRST) + len(varied) :]:
        if name not in LAST and frame[name].isna().all():
            frame[name] = frame[name].astype("float64")
    order = [name for name in ("profile", *varied, "policy", "replication") if name in frame]
    return frame.sort_values(order, key=_sortable, kind="stable").reset_index(drop=True) if len(frame) else frame


def _with_unit(name: str) -> str:
    metric, if_, regime = name.partition("_if_")
    return UNITS.get(metric, metric) + if_ + regime


def plain_value(text: str | int | float | None, key: str) -> str | float | None:
    """A value of a scenario as a cell of a frame. Raises ValueError where `text` is no JSON of one."""
    value = inf if text == "Infinity" else None if text is None else parse_json(str(text), f"scenario {key!r}")
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


def _sortable(column: pd.Series) -> pd.Series:
    """Numbers by size, all else as text."""
    return column if column.dtype.kind in "ifb" else column.map(lambda value: "" if value is None else str(value))
