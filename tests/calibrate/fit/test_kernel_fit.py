"""Constants of kernels, fitted on rows that were made from known ones."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")

from calibrate.fit.kernel_fit import DecodeRows, decode_rows_s, fit_decode_attention
from sim.costs.compact_kernels import DecodeAttention
from sim.costs.profile import Gpu

GPU = Gpu(name="a100-sxm", memory_bytes=80 << 30, peak_flops=312e12, bandwidth_bytes_per_s=2e12)
ROWS = DecodeRows(
    row_heads=np.repeat([8.0, 64.0, 512.0, 4096.0], 6),
    kv_bytes=np.tile(np.geomspace(1e6, 4e9, 6), 4),
    seconds=np.ones(24),
)


def made_from(bandwidth_share: float) -> DecodeRows:
    constants = DecodeAttention(fixed_s=8e-6, row_head_s=2e-8, bandwidth_share=bandwidth_share, sharpness=3.0)
    return ROWS._replace(seconds=decode_rows_s(constants, GPU, ROWS))


def test_decode_attention_finds_the_constants_that_rows_were_made_from() -> None:
    found = fit_decode_attention(made_from(0.7), GPU)
    assert found.bandwidth_share == pytest.approx(0.7, rel=0.01)
    assert found.fixed_s == pytest.approx(8e-6, rel=0.05)
    assert found.row_head_s == pytest.approx(2e-8, rel=0.05)


def test_no_fit_reads_faster_than_the_memory() -> None:
    assert fit_decode_attention(made_from(1.4), GPU).bandwidth_share <= 1.0
