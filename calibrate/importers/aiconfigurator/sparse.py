"""Sparse attention by an indexer (DSA), from tables of whole modules: matrices, indexer, choice of tokens, attention.

A profile has matrices in the body of a pass, by tokens, and attention beside it, by rows and context. So what a module
takes beyond its matrices counts as attention, and both together make up the module again.
Not here: single kernels (lookups), what a layer is made of (deployment).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from calibrate.fit.fit_errors import Array
from calibrate.fit.kernel_tables import AttentionTable
from calibrate.importers.aiconfigurator.grids import CHUNKS, HISTORIES
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles

GROUP = "sparse_attention"
GEMM_NAMES = {"bf16": "bfloat16", "fp8-block": "fp8_block", "nvfp4": "nvfp4"}
LAUNCH_BOUND_S = 1e-4
"""A table in which no module of one token is shorter was timed launch by launch: vLLM 0.24's take 120 us whatever there
is to do, SGLang's 30 on the same GPU. In service decode is inside CUDA graphs."""
MIN_SHARE = 0.1
"""Share of a module's time that is attention at least."""


class Modules(NamedTuple):
    """[points] of one phase: `sequences`, `queries` of each, tokens of `history` before them, `seconds`."""

    sequences: Array
    queries: Array
    history: Array
    seconds: Array


def read_modules(
    files: KernelFiles, engine: str, phase: str, heads: tuple[int, int], projections: str, kv: str
) -> Modules:
    """Modules of a model with `heads` (heads on one device, devices); `phase` is context or generation, `kv` as
    kv_cache_dtype has it. Raises ValueError where there are none, or none without launches."""
    columns = ["batch_size", "isl", "step", "num_heads", "tp_size"]
    name = f"dsa_{phase}_module"
    frame = files.read(GROUP, engine, f"{name}_perf", [*columns, "gemm_type", "kv_cache_dtype", "op_name"])
    decode = files.read(GROUP, engine, "dsa_generation_module_perf", columns)
    if float(decode["latency"].min()) * 1e-3 > LAUNCH_BOUND_S:
        raise ValueError(f"{name} of {engine}: timed with its launches")
    use = (frame["op_name"] == name) & (frame["kv_cache_dtype"] == kv)
    use &= (frame["num_heads"] == heads[0]) & (frame["tp_size"] == heads[1])
    frame = frame[use & (frame["gemm_type"] == GEMM_NAMES.get(projections))]
    if frame.empty:
        raise ValueError(f"{name} of {engine}: no rows of {heads[0]} heads on one of {heads[1]} with {kv} KV")
    frame = frame.groupby(["batch_size", "isl", "step"], as_index=False)["latency"].min()
    batch, queries, history, milliseconds = frame[["batch_size", "isl", "step", "latency"]].to_numpy(dtype=float).T
    return Modules(batch, queries, history, 1e-3 * milliseconds)


def _attention_s(modules: Modules, gemms_s: Callable[[Array], Array]) -> Array:
    """[points] what modules take beyond matrices of as many tokens."""
    beyond = modules.seconds - gemms_s(modules.sequences * modules.queries)
    return np.maximum(beyond, MIN_SHARE * modules.seconds)


def decode_points(modules: Modules, gemms_s: Callable[[Array], Array]) -> AttentionTable:
    """Attention of rows that decode, as that of one head."""
    ones = np.ones(len(modules.seconds))
    context = modules.queries + modules.history
    return AttentionTable(modules.sequences, context, ones, ones, ones, _attention_s(modules, gemms_s))


def prompt_grid(modules: Modules, gemms_s: Callable[[Array], Array]) -> Array:
    """[CHUNKS, HISTORIES] of one prompt's chunks: histories between measured ones linearly; longer chunks than any that
    was measured in proportion."""
    alone = modules.sequences == 1
    queries, history, seconds = modules.queries[alone], modules.history[alone], _attention_s(modules, gemms_s)[alone]
    measured = np.unique(queries)
    lines = np.empty((len(measured), len(HISTORIES)))
    for i, chunk in enumerate(measured):
        order = np.argsort(history[queries == chunk])
        line = (each[queries == chunk][order] for each in (history, seconds))
        lines[i] = np.interp(HISTORIES, *line)
    chunks = np.array(CHUNKS, dtype=float)
    beyond = np.maximum(1.0, chunks / measured[-1])
    columns = (np.exp(np.interp(np.log(chunks), np.log(measured), np.log(line))) for line in lines.T)
    return np.stack([column * beyond for column in columns], axis=1)
