"""Served cells as they are read: rows of silicon_sample.csv, with what their labels get wrong repaired.

Not here: which labels cannot be repaired (validation.silicon.labels).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from calibrate.importers.aiconfigurator.deployment import Deployment
from validation.tables import csv_rows

EXACT_SOURCE, MEASURED = "aic-auto-gap-analysis", "measured="
FORMATS = {"": "bf16", "fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4", "int4_wo": None}
"""gemm_quant_mode -> weights; None: as the checkpoint says."""
BLOCK_SCALED = ("Qwen/Qwen3.5-397B-A17B",)
"""Models whose published FP8 checkpoint is scaled by blocks, though the config.json of CHECKPOINTS is in bf16."""
BLACKWELL = ("b200", "b300", "gb200", "gb300")
OLDEST = {"vllm": "0.11", "sglang": "0.5", "trtllm": "1.1"}
"""Rows without a version are of autumn 2025."""
WITH_MTP = ("DeepSeek-R1", "DeepSeek-V3")


class Cell(NamedTuple):
    """One row as it is read: which profile, which loop, what was measured."""

    id: str
    engine: str
    version: str
    model: str
    gpu: str
    weights: str | None
    kv: str | None
    deployment: Deployment
    concurrency: int
    input_len: int
    output_len: int
    is_exact: bool
    day: str
    """The day on which it was measured; empty where the row does not say."""
    ttft_ms: float
    tpot_ms: float
    family: str
    """The class: engine, dense or MoE, GEMM format."""


def read_cells(path: Path, mode: str = "agg") -> list[dict[str, str]]:
    return [row for row in csv_rows(path) if row["mode"] == mode]


def cell_of(row: Mapping[str, str]) -> Cell:
    """The row with what its label gets wrong repaired: widths that are products of two, gpt-oss called nvfp4."""
    tensor, expert, data, batch = _widths(row)
    is_dense = _is_dense(row["model_path"])
    gpu = row["system"].replace("_", "-")
    is_blackwell = gpu.partition("-")[0] in BLACKWELL
    weights = FORMATS[row["gemm_quant_mode"]]
    if weights == "fp8" and row["model_path"] in BLOCK_SCALED:
        weights = "fp8-block"
    version = row["backend_version"] or OLDEST[row["backend"]]
    kv = None
    # Its dense models do not fuse an all-reduce with the norm behind it, as those with experts do.
    has_nccl = row["backend"] == "trtllm" and version.startswith("1.0") and is_dense
    if "gpt-oss" in row["model_path"]:
        weights = "mxfp4-fp8" if is_blackwell else "mxfp4-marlin"
    is_recipe = EXACT_SOURCE not in row["silicon_data_source"]
    is_narrow = row["gemm_quant_mode"] in ("fp8", "nvfp4")
    has_narrow_kv = is_dense or (row["backend"] == "trtllm" and row["model_path"].endswith(WITH_MTP))
    if is_blackwell or (is_narrow and has_narrow_kv and (is_recipe or (is_dense and row["backend"] == "vllm"))):
        kv = "fp8"
    return Cell(
        id=row["id"],
        engine=row["backend"],
        version=version,
        model=row["model_path"],
        gpu=gpu,
        weights=weights,
        kv=kv,
        deployment=Deployment(tensor, expert if expert > 1 else None, data, row["backend"], has_nccl_alone=has_nccl),
        concurrency=batch,
        input_len=_whole(row["isl"]),
        output_len=_whole(row["osl"]),
        is_exact=not is_recipe,
        day=row["silicon_data_source"].partition(MEASURED)[2][: len("2026-01-14")],
        ttft_ms=float(row["silicon_ttft_ms"]),
        tpot_ms=float(row["silicon_tpot_ms"]),
        family=" ".join((row["backend"], "dense" if is_dense else "moe", row["gemm_quant_mode"] or "bf16")),
    )


def _widths(row: Mapping[str, str]) -> tuple[int, int, int, int]:
    """(tensor, expert, data parallel, concurrency of one rank)."""
    tensor, data = _whole(row["tp_size"]) or 1, _whole(row["attention_dp_size"]) or 1
    cut, spread, batch = _whole(row["moe_tp_size"]), _whole(row["moe_ep_size"]), _whole(row["batch_size"])
    if _is_dense(row["model_path"]):
        return tensor, 1, 1, batch
    if cut > 1 and cut == spread:
        width, total = cut, batch * data
    elif data > 1 and tensor == data and spread == data * data:
        width, total = data, batch * data
    else:
        if not _whole(row["attention_dp_size"]) and cut * spread > tensor:
            data = cut * spread // tensor
        return tensor, max(spread, 1), data, batch
    return (1, width, width, max(1, total // width)) if data > 1 else (width, width, 1, total)


def _is_dense(model: str) -> bool:
    return "Llama" in model or "Qwen3-32B" in model


def _whole(text: str) -> int:
    return int(float(text)) if text else 0
