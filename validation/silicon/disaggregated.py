"""Disaggregated rows of the served cells (`python -m validation silicon CELLS.csv --mode disagg --json OUT`).

A row has prefill workers and decode workers, each a separate deployment, and the requests that a decode rank holds;
the closed loop keeps as many in flight as all ranks hold together. Prompts are prefilled one at a time per rank, as the
rows say, their KV is handed over (cuda-ipc), and every rank batches what it holds: policy `disaggregated`. Ranks are
alike, so that a node is scaled down by the common divisor of its numbers of prefill and decode ranks. Nothing is fitted
on these rows. Not here: errors by class (validation.silicon.judge).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from calibrate.judge.cell import Cell
from sim.costs.profile_files import save_profile
from validation.silicon.served_cells import (
    Refusal,
    cell_of,
    engine_name,
    loop_of,
    means,
    profile_of,
    refusal,
    row_of,
)

BUDGET = 16384
"""Tokens of one pass: longer than any prompt of the rows."""
LOST_SEATS = 2
"""Seats of a decode rank over what it holds on average: placement is by free memory, not exactly even."""
SIZES = ("prefill_batch_size", "prefill_num_workers", "decode_batch_size", "decode_num_workers")


class RowPools(NamedTuple):
    """One rank of each pool, as the cell of an aggregated row would have it, and the numbers of ranks."""

    prefill: Cell
    decode: Cell
    prefill_ranks: int
    decode_ranks: int


def pools_of(row: Mapping[str, str]) -> RowPools:
    """Raises ValueError for a row that does not say how much is in flight, and for pipelines."""
    if not all(row[key] for key in SIZES):
        raise ValueError("the row has no batch sizes and workers")
    if row["prefill_pp_size"] not in ("", "1") or row["decode_pp_size"] not in ("", "1"):
        raise ValueError("pipeline parallelism is not simulated")
    prefill, decode = (_rank_of(row, pool) for pool in ("prefill", "decode"))
    ranks = (int(float(row[f"{pool}_num_workers"])) for pool in ("prefill", "decode"))
    return RowPools(prefill, decode, *(count * cell.dp for count, cell in zip(ranks, (prefill, decode), strict=True)))


def _rank_of(row: Mapping[str, str], pool: str) -> Cell:
    tp, ep, dp, concurrency = (
        int(float(row[f"{pool}_{name}"] or 0)) or 1
        for name in ("tp_size", "moe_ep_size", "attention_dp_size", "batch_size")
    )
    cell = cell_of({**row, "batch_size": "1", "tp_size": "1", "attention_dp_size": "1"})
    return msgspec.structs.replace(cell, tp=tp, ep=ep if ep > 1 else None, dp=dp, concurrency=concurrency)


def raw_scenario(pools: RowPools, profile: str, prefill: Path) -> dict[str, Any]:
    """The row in the words of a scenario file; `prefill` is the file of the other pool's profile."""
    cell = pools.decode
    # Ranks hold the same number of requests, so that a part of the node with the same ratio of ranks does the same.
    parts = gcd(pools.prefill_ranks, pools.decode_ranks)
    prefill_ranks, decode_ranks = pools.prefill_ranks // parts, pools.decode_ranks // parts
    return {
        "profile": profile,
        "policy": "disaggregated",
        "engine": {
            "name": engine_name(cell),
            "max_num_seqs": LOST_SEATS * cell.concurrency + 1,
            "max_num_batched_tokens": BUDGET,
        },
        "workload": loop_of(cell, cell.concurrency * decode_ranks),
        "speculation": {"num_speculative_tokens": 0},
        "policy_options": {
            "pools": {"prefill": prefill_ranks, "decode": decode_ranks, "prefill_profile": str(prefill)},
            "poll_s": 0.0,
        },
    }


def predicted(pools: RowPools, folder: Path) -> dict[str, float]:
    """Mean TPOT and TTFT, milliseconds. Raises ValueError for what the tables lack."""
    served, prefilling = (profile_of(cell)[0] for cell in (pools.decode, pools.prefill))
    return means(raw_scenario(pools, served.name, save_profile(prefilling, folder / "prefill.json")), served)


def family_of(row: Mapping[str, str]) -> str:
    """Engine, GPU and the format of the GEMMs: models are DeepSeek's but for a few."""
    return " ".join((row["backend"], row["system"], row["gemm_quant_mode"] or "bf16"))


def judge(rows: Iterable[Mapping[str, str]]) -> Iterator[dict[str, Any] | Refusal]:
    """A row of figures for every row, or why it is refused."""
    with TemporaryDirectory() as folder:
        for row in rows:
            try:
                pools = pools_of(row)
                yield row_of(pools.decode, predicted(pools, Path(folder))) | {"class": family_of(row)}
            except ValueError as error:
                yield refusal(family_of(row), row["model_path"], row["system"], error)
