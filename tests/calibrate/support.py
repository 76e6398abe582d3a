"""Ground of the calibration tests: synthetic kernel tables in aiconfigurator's layout, and where the real ones are."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"
"""Published tables beside the checkout; they are not part of the project."""

DATASHEET = "gpu:\n  mem_bw: 2.0e+12\n  mem_capacity: 80000000000\n  bfloat16_tc_flops: 3.0e+14\n"


def published(place: str) -> Path:
    """A folder or file of the published data; skips the test where it is absent."""
    path = DATA / place
    if not path.exists():
        pytest.skip(f"published data is not here ({place})")
    return path


def write_tables(root: Path, **changes: Any) -> Path:
    """A small GPU folder `a100_sxm` with consistent tables; `changes` maps a table to a function on its frame."""
    import pandas as pd

    frames = {
        "gemm/vllm/0.14.0/gemm_perf": pd.DataFrame(_gemm_rows()),
        "attention/vllm/0.14.0/context_attention_perf": pd.DataFrame(_attention_rows(is_decode=False)),
        "attention/vllm/0.14.0/generation_attention_perf": pd.DataFrame(_attention_rows(is_decode=True)),
        "comm/vllm/0.14.0/custom_allreduce_perf": pd.DataFrame(
            [
                {"num_gpus": 2, "message_size": size, "backend": "vllm_graph", "latency": 0.01 + 2 * size / 1e11 * 1e3}
                for size in (128, 8192, 1 << 20, 1 << 24)
            ]
        ),
    }
    (root / "a100_sxm").mkdir()
    (root / "a100_sxm.yaml").write_text(DATASHEET)
    for place, frame in frames.items():
        change = changes.get(place.rsplit("/", 1)[1])
        changed = frame if change is None else change(frame)
        if changed is not None:
            changed.to_parquet(root / "a100_sxm" / f"{place.replace('/', '__')}.parquet")
    return root


def gemm_ms(m: int, n: int, k: int) -> float:
    """The law behind the synthetic GEMM table: 60 % of 300 TFLOP/s plus 80 % of 2 TB/s plus 4 us."""
    return 1e3 * (2 * m * n * k / (0.6 * 3e14) + 2 * (n * k + m * (n + k)) / (0.8 * 2e12) + 4e-6)


def decode_attention_ms(kv_bytes: float) -> float:
    """The law behind the synthetic decode attention: 12 us plus 75 % of the bandwidth."""
    return 1e3 * (12e-6 + kv_bytes / (0.75 * 2e12))


def _gemm_rows() -> list[dict[str, Any]]:
    sizes = (512, 2048, 4096, 8192, 16384, 65536)
    tokens = (1, 2, 8, 32, 64, 128, 256, 512, 1024, 2048, 8192)
    rows = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": gemm_ms(m, n, k)}
        for m in tokens
        for n in sizes
        for k in sizes
    ]
    return [*rows, {"gemm_dtype": "fp8", "m": 1, "n": 512, "k": 512, "latency": 99.0}]


def _attention_rows(*, is_decode: bool) -> list[dict[str, Any]]:
    rows = []
    same = {"head_dim": 128, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
    groups = ((32, 8), (16, 4), (64, 8), (32, 32), (16, 2))
    for (heads, kv_heads), sequences, tokens in product(groups, (1, 8, 64, 256), (16, 128, 1024, 4096)):
        kv_bytes = 4.0 * sequences * tokens * kv_heads * 128
        flops = 4.0 * heads * 128 * sequences * tokens * (tokens + 1) / 2
        prefill_ms = 1e3 * (10e-6 + flops / (0.5 * 3e14) + kv_bytes / (0.5 * 2e12))
        place = {"batch_size": sequences, "num_heads": heads, "num_key_value_heads": kv_heads}
        if is_decode:
            timed = {"isl": 1, "step": tokens - 1, "latency": decode_attention_ms(kv_bytes)}
        else:
            timed = {"isl": tokens, "step": 0, "latency": prefill_ms}
        rows.append(place | same | timed)
    return rows
