"""Disaggregated rows: how they are read, what is refused, and what is simulated of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sim.costs.profile_files import changed, load, save_profile
from validation.judge.served_cells import RowPools, means, pooled_scenario, pools_of

POOLS = {
    "prefill": {"batch_size": "1", "num_workers": "3", "tp_size": "1", "attention_dp_size": "4", "moe_ep_size": "4"},
    "decode": {"batch_size": "16", "num_workers": "2", "tp_size": "8", "attention_dp_size": "1", "moe_ep_size": "8"},
}
ROW = {
    "id": "one", "backend": "trtllm", "backend_version": "1.0", "system": "b200_sxm", "gemm_quant_mode": "fp8",
    "model_path": "deepseek-ai/DeepSeek-V3", "isl": "1024", "osl": "512", "silicon_data_source": "somewhere",
    "silicon_ttft_ms": "200", "silicon_tpot_ms": "10", "moe_tp_size": "", "moe_ep_size": "",
    **{f"{pool}_{key}": value for pool, own in POOLS.items() for key, value in own.items()},
    **{f"{pool}_{key}": "1" for pool in POOLS for key in ("pp_size", "moe_tp_size")},
}  # fmt: skip


def test_a_row_is_two_deployments_and_their_ranks() -> None:
    prefill, decode, prefill_ranks, decode_ranks = pools_of(ROW)
    assert (prefill.tp, prefill.ep, prefill.dp) == (1, 4, 4)
    assert (decode.tp, decode.ep, decode.dp, decode.concurrency) == (8, 8, 1, 16)
    assert (prefill_ranks, decode_ranks) == (3 * 4, 2)
    assert (decode.gpu, decode.label) == ("b200-sxm", "trtllm moe fp8")
    pools = pooled_scenario(pools_of(ROW), "p", Path("q"))["policy_options"]["pools"]
    assert (pools["prefill"], pools["decode"]) == (6, 1)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({"decode_batch_size": ""}, "no batch sizes"), ({"prefill_pp_size": "2"}, "pipeline parallelism")],
)
def test_rows_without_sizes_and_with_pipelines_are_refused(changes: dict[str, str], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        pools_of(ROW | changes)


def test_all_that_decode_ranks_hold_is_in_flight_and_prefill_has_costs_of_its_own(tmp_path: Path) -> None:
    """Two decode ranks of 4 requests each beside one prefill rank; twice the prompt's time on the other profile shows
    in TTFT alone."""
    tiny = load("cpu/tiny")
    sizes: dict[str, Any] = {"input_len": 64, "output_len": 16, "concurrency": 4, "tp": 1, "ep": None, "dp": 1}
    cell = msgspec.structs.replace(pools_of(ROW).decode, **sizes)
    figures = []
    for name, factor in (("same", 1.0), ("slow", 0.5)):
        gpu = msgspec.structs.replace(tiny.gpu, peak_flops=factor * tiny.gpu.peak_flops)
        path = save_profile(changed(tiny, gpu=gpu), tmp_path / f"{name}.json")
        raw = pooled_scenario(RowPools(cell, cell, 1, 2), tiny.name, path)
        assert raw["workload"]["max_concurrency"] == 8
        figures.append(means(raw, tiny))
    fast, slow = figures
    assert slow["ttft_ms"] > fast["ttft_ms"]
    assert slow["tpot_ms"] == pytest.approx(fast["tpot_ms"], rel=0.2)
