"""Disaggregated rows of the served cells: `python -m validation silicon CELLS.csv --mode disagg --json OUT`.

A row has prefill workers and decode workers, each a deployment of its own, and the requests that a decode rank holds;
the closed loop keeps as many in flight as all ranks hold together. Prompts are prefilled one at a time per rank, as the
rows say, their KV is handed over (cuda-ipc), and every rank batches what it holds: policy `disaggregated`. Ranks are
alike, so that a node is scaled down by what its numbers of prefill and decode ranks have in common. Nothing is fitted
on these rows; kernels are as in validation.silicon.judge, and a row gets what `lanesim compare` says of its scenario
with the engine of its version. Not here: aggregated rows.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from calibrate.importers.aiconfigurator.deployment import Deployment
from sim.compare.side_by_side import compare
from sim.costs.profile_files import save_profile
from sim.files.json_values import Json
from sim.run.scenario import Scenario
from validation.silicon.judge import (
    FEW_WAVES,
    LENGTH_RANGE,
    MANY,
    WAVES,
    engine_name,
    fail,
    nothing_judged,
    profile_of,
)
from validation.silicon.served_cells import Cell, cell_of
from validation.tables import grouped, mean_size, off_pct, plain_table

BUDGET = 16384
"""Tokens of one pass: longer than any prompt of the rows."""
NO_SIZES = "the row has no batch sizes and workers"
LOST_SEATS = 2
"""Seats of a decode rank over what it holds on average: placement is by free memory, not exactly even."""


class DisaggCell(NamedTuple):
    """One row: `decode` has the deployment of a decode worker and the requests of one of its ranks."""

    decode: Cell
    prefill: Deployment
    prefill_ranks: int
    decode_ranks: int


class Judged(NamedTuple):
    cell: DisaggCell
    tpot_ms: float
    ttft_ms: float

    @property
    def tpot_error_pct(self) -> float:
        return off_pct(self.tpot_ms, self.cell.decode.tpot_ms)

    @property
    def ttft_error_pct(self) -> float:
        return off_pct(self.ttft_ms, self.cell.decode.ttft_ms)


def has_sizes(row: Mapping[str, str]) -> bool:
    keys = ("prefill_batch_size", "prefill_num_workers", "decode_batch_size", "decode_num_workers")
    return all(row[key] for key in keys)


def disagg_cell_of(row: Mapping[str, str]) -> DisaggCell:
    """Raises ValueError for a row that does not say how much is in flight, and for prompts batched in prefill."""
    if not has_sizes(row):
        raise ValueError(NO_SIZES)
    if row["prefill_pp_size"] not in ("", "1") or row["decode_pp_size"] not in ("", "1"):
        raise ValueError("pipeline parallelism is not simulated")
    engine = row["backend"]
    prefill, decode = (_deployment(row, pool, engine) for pool in ("prefill", "decode"))
    cell = plain_cell(row, decode, int(float(row["decode_batch_size"])))
    return DisaggCell(
        decode=cell,
        prefill=prefill,
        prefill_ranks=int(float(row["prefill_num_workers"])) * prefill.data_parallel,
        decode_ranks=int(float(row["decode_num_workers"])) * decode.data_parallel,
    )


def plain_cell(row: Mapping[str, str], deployment: Deployment, concurrency: int) -> Cell:
    """The cell that an aggregated row of the same model, engine and lengths would be."""
    as_aggregated = {**row, "batch_size": str(concurrency), "tp_size": "1", "attention_dp_size": "1"}
    return cell_of(as_aggregated)._replace(deployment=deployment, concurrency=concurrency)


def _deployment(row: Mapping[str, str], pool: str, engine: str) -> Deployment:
    def width(name: str) -> int:
        return int(float(row[f"{pool}_{name}"] or 0)) or 1

    spread = width("moe_ep_size")
    return Deployment(width("tp_size"), spread if spread > 1 else None, width("attention_dp_size"), engine)


def predicted(cell: DisaggCell, folder: Path) -> tuple[float, float]:
    """Mean TPOT and TTFT, milliseconds. Raises ValueError for what the tables lack."""
    decode = cell.decode
    profiles = [
        profile_of(decode.model, decode.gpu, decode.weights, decode.kv, deployment)[0]
        for deployment in (decode.deployment, cell.prefill)
    ]
    # What ranks hold is balanced, so that a part of the node whose ratio of ranks is the same does the same.
    parts = gcd(cell.prefill_ranks, cell.decode_ranks)
    served, prefilling = profiles
    path = save_profile(prefilling, folder / "prefill.json")
    scenario = scenario_of(decode, served.name, path, cell.prefill_ranks // parts, cell.decode_ranks // parts)
    (run,) = compare(scenario, served, workers=1).policies
    return run.mean["mean_tpot_ms"] or 0.0, run.mean["mean_ttft_ms"] or 0.0


def scenario_of(cell: Cell, profile: str, prefill: Path, prefill_ranks: int, decode_ranks: int) -> Scenario:
    in_flight = cell.concurrency * decode_ranks
    return Scenario.of(
        profile=profile,
        policy="disaggregated",
        num_prompts=max(8, (FEW_WAVES if in_flight > MANY else WAVES) * in_flight),
        request_rate="inf",
        max_concurrency=in_flight,
        input_len=cell.input_len,
        output_len=cell.output_len,
        num_speculative_tokens=0,
        **{
            "workload.length_range": None if cell.is_exact else LENGTH_RANGE,
            "engine.name": engine_name(cell),
            "engine.max_num_seqs": LOST_SEATS * cell.concurrency + 1,
            "engine.max_num_batched_tokens": BUDGET,
            "policy_options.prefill_devices": prefill_ranks,
            "policy_options.decode_devices": decode_ranks,
            "policy_options.poll_s": 0.0,
            "devices.prefill_profile": str(prefill),
        },
    )


def judge(rows: Iterable[Mapping[str, str]]) -> Iterator[Judged | tuple[str, str, str]]:
    """Every row judged, or its family, id and why it is refused."""
    with TemporaryDirectory() as folder:
        for row in rows:
            try:
                cell = disagg_cell_of(row)
                tpot_ms, ttft_ms = predicted(cell, Path(folder))
            except ValueError as error:
                yield family_of(row), row["id"], " ".join(str(error).split())[:200]
                continue
            yield Judged(cell, tpot_ms, ttft_ms)


def family_of(row: Mapping[str, str]) -> str:
    """Engine, GPU and the format of the GEMMs: models are DeepSeek's but for a few."""
    return " ".join((row["backend"], row["system"], row["gemm_quant_mode"] or "bf16"))


def classes_of(found: Iterable[Judged | tuple[str, str, str]]) -> list[dict[str, Json]]:
    """A row per family: cells judged and refused, mean and median size of the errors, mean errors."""
    entries = list(found)
    judged = grouped([entry for entry in entries if isinstance(entry, Judged)], _family)
    refused = Counter(entry[0] for entry in entries if not isinstance(entry, Judged))
    result: list[dict[str, Json]] = []
    for name in sorted({*judged, *refused}):
        rows = judged.get(name, [])
        tpot, ttft = [row.tpot_error_pct for row in rows], [row.ttft_error_pct for row in rows]
        result.append(
            {
                "class": name,
                "cells": len(rows),
                "refused": refused[name],
                "tpot_mean_abs_pct": _of(fmean, map(abs, tpot)),
                "tpot_median_abs_pct": _of(median, map(abs, tpot)),
                "tpot_mean_pct": _of(fmean, tpot),
                "ttft_mean_abs_pct": _of(fmean, map(abs, ttft)),
                "ttft_median_abs_pct": _of(median, map(abs, ttft)),
                "ttft_mean_pct": _of(fmean, ttft),
            }
        )
    return result


def _family(judged: Judged) -> str:
    cell = judged.cell.decode
    return " ".join((cell.engine, cell.gpu.replace("-", "_"), cell.family.rpartition(" ")[2]))


def _of(how: Callable[[list[float]], float], values: Iterable[float]) -> float | None:
    known = list(values)
    return round(how(known), 2) if known else None


def run(rows: list[dict[str, str]], options: Namespace) -> int:
    """The command with --mode disagg: the table on the terminal, everything in --json; the exit code."""
    rows = [row for row in rows if options.only in family_of(row)]
    sized = [row for row in rows if has_sizes(row)][:: options.every]
    without = [row for row in rows if not has_sizes(row)] if options.every == 1 else []
    start_s = time.perf_counter()
    found: list[Judged | tuple[str, str, str]] = []
    for i, entry in enumerate(judge([*sized, *without])):
        found.append(entry)
        if i % 20 == 19 and i < len(sized):
            print(f"{i + 1} of {len(sized)} rows with sizes, {time.perf_counter() - start_s:.0f} s", flush=True)
    judged = [entry for entry in found if isinstance(entry, Judged)]
    if not judged:
        return fail(nothing_judged([entry[2] for entry in found if not isinstance(entry, Judged)], options), 1)
    classes = classes_of(found)
    result = {
        "classes": classes,
        "refusals": sorted({(entry[0], entry[2]) for entry in found if not isinstance(entry, Judged)}),
        "cells": [
            {
                "id": entry.cell.decode.id,
                "tpot_ms": round(entry.tpot_ms, 3),
                "ttft_ms": round(entry.ttft_ms, 1),
                "tpot_error_pct": round(entry.tpot_error_pct, 1),
                "ttft_error_pct": round(entry.ttft_error_pct, 1),
            }
            for entry in judged
        ],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(plain_table(classes, list(classes[0])))
    tpot, ttft = (
        mean_size([getattr(entry, name) for entry in judged]) for name in ("tpot_error_pct", "ttft_error_pct")
    )
    print(f"{len(judged)} of {len(found)} rows: mean size of error TPOT {tpot:.1f} %, TTFT {ttft:.1f} %")
    return 0
