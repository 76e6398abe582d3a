"""Sparse attention by an indexer: what is taken apart for the profile makes up the measured module again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sim.costs.shapes import Indexer, Latent
from tests.calibrate.importers.test_deployment import LLAMA, body_ms, imported, rest_ms, served_ms
from tests.calibrate.support import gemm_ms, write_tables

SPARSE_ATTENTION = msgspec.structs.replace(
    LLAMA,
    name="sparse-attention",
    latent=Latent(query_rank=1024, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    indexer=Indexer(heads=4, dim=128, tokens=2048),
)


def module_ms(rows: int, queries: int, history: int) -> float:
    """Of the synthetic modules: far more than their matrices, and attention beyond."""
    return 10.0 + 0.02 * rows * queries + 1e-4 * rows * (queries + history)


def module_tables(root: Path, engine: str = "sglang", min_ms: float = 0.0) -> Path:
    import pandas as pd

    if not (root / "a100_sxm").exists():
        write_tables(root)
    same = {"num_heads": 32, "tp_size": 1, "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16"}
    for phase, places in (
        ("generation", [(rows, 1, step) for rows in (1, 64, 256) for step in (1, 4095, 65535)]),
        ("context", [(1, queries, step) for queries in (16, 1024, 8192) for step in (0, 4096, 65536)]),
    ):
        name = f"dsa_{phase}_module"
        frame = pd.DataFrame(
            [
                {
                    **same,
                    "op_name": name,
                    "batch_size": b,
                    "isl": q,
                    "step": s,
                    "latency": min_ms + module_ms(b, q, s),
                }
                for b, q, s in places
            ]
        )
        if phase == "generation":
            frame = pd.concat([frame, frame.assign(op_name="other", latency=0.09)])
        frame.to_parquet(root / "a100_sxm" / f"sparse_attention__{engine}__0.5__{name}_perf.parquet")
    return root


def test_matrices_and_attention_of_sparse_attention_make_up_the_measured_module(tmp_path: Path) -> None:
    profile = imported(module_tables(tmp_path), SPARSE_ATTENTION)
    matrices = sum(served_ms(64, *each) for each in SPARSE_ATTENTION.attention_gemms())
    rest = sum(served_ms(64, *each) for each in SPARSE_ATTENTION.mlp_gemms(LLAMA.intermediate))
    rest += rest_ms(profile, SPARSE_ATTENTION, 64)
    grid = profile.table.target.decode_attention
    beside = grid.seconds[grid.rows.index(64)][grid.context_tokens.index(4096)]
    assert beside is not None
    assert body_ms(profile, 64) + 1e3 * beside == pytest.approx(rest + module_ms(64, 1, 4095), rel=2e-3)
    assert 1e3 * beside == pytest.approx(module_ms(64, 1, 4095) - matrices, rel=2e-3)
    prompts = profile.table.target.prefill_attention
    chunk, history = prompts.chunk_tokens.index(1024), prompts.history_tokens.index(4096)
    body = sum(gemm_ms(1024, *each) for each in SPARSE_ATTENTION.attention_gemms())
    assert 1e3 * prompts.seconds[chunk][history] == pytest.approx(module_ms(1, 1024, 4096) - body, rel=0.02)
    assert prompts.seconds[-1][0] == pytest.approx(2 * prompts.seconds[-2][0], rel=1e-3)


def test_modules_that_were_timed_with_their_launches_are_passed_over(tmp_path: Path) -> None:
    import pandas as pd

    write_tables(tmp_path)
    module_tables(tmp_path, "vllm", min_ms=1.0)
    place = tmp_path / "a100_sxm" / "sparse_attention__vllm__0.5__dsa_generation_module_perf.parquet"
    frame = pd.read_parquet(place)
    frame[frame.op_name != "other"].to_parquet(place)
    with pytest.raises(ValueError, match="no sparse attention of 32 heads on one of 1 devices with bf16 matrices"):
        imported(tmp_path, SPARSE_ATTENTION)
    module_tables(tmp_path, "sglang")
    assert "sparse attention (generation): sglang's" in imported(tmp_path, SPARSE_ATTENTION).source
