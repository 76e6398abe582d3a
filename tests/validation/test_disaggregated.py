"""Disaggregated rows: how they are read, what is refused, and what is simulated of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from calibrate.importers.aiconfigurator.deployment import PACKAGE, Deployment
from sim.compare.side_by_side import compare
from sim.costs.engine_costs import load_engine
from sim.costs.profile_files import changed, load, save_profile
from validation.silicon.disaggregated import (
    DisaggCell,
    Judged,
    classes_of,
    disagg_cell_of,
    plain_cell,
    predicted,
    scenario_of,
)
from validation.silicon.judge import profile_of
from validation.silicon.served_cells import Cell

POOLS = {
    "prefill": {"batch_size": "1", "num_workers": "3", "tp_size": "1", "attention_dp_size": "4", "moe_ep_size": "4"},
    "decode": {"batch_size": "16", "num_workers": "2", "tp_size": "8", "attention_dp_size": "1", "moe_ep_size": "8"},
}
ROW = {
    "id": "one",
    "backend": "trtllm",
    "backend_version": "1.0",
    "system": "b200_sxm",
    "model_path": "deepseek-ai/DeepSeek-V3",
    "gemm_quant_mode": "fp8",
    "isl": "1024",
    "osl": "512",
    "silicon_data_source": "somewhere",
    "silicon_ttft_ms": "200",
    "silicon_tpot_ms": "10",
    "moe_tp_size": "",
    "moe_ep_size": "",
    **{f"{pool}_{key}": value for pool, own in POOLS.items() for key, value in own.items()},
    **{f"{pool}_{key}": "1" for pool in POOLS for key in ("pp_size", "moe_tp_size")},
}


def test_a_row_is_two_deployments_and_their_ranks() -> None:
    cell = disagg_cell_of(ROW)
    assert cell.prefill == Deployment(1, 4, 4, "trtllm")
    assert cell.decode.deployment == Deployment(8, 8, 1, "trtllm")
    assert (cell.prefill_ranks, cell.decode_ranks) == (3 * 4, 2)
    assert cell.decode.concurrency == 16
    assert (cell.decode.gpu, cell.decode.family) == ("b200-sxm", "trtllm moe fp8")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({"decode_batch_size": ""}, "no batch sizes"), ({"prefill_pp_size": "2"}, "pipeline parallelism")],
)
def test_what_a_row_does_not_say_is_refused(changes: dict[str, str], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        disagg_cell_of(ROW | changes)


def test_classes_count_refusals_beside_mean_and_median_errors() -> None:
    cell = disagg_cell_of(ROW)
    judged = [Judged(cell, 11.0, 100.0), Judged(cell, 9.0, 300.0), Judged(cell, 13.0, 200.0)]
    (found,) = classes_of([*judged, ("trtllm b200_sxm fp8", "two", "why")])
    assert (found["class"], found["cells"], found["refused"]) == ("trtllm b200_sxm fp8", 3, 1)
    assert (found["tpot_mean_abs_pct"], found["tpot_median_abs_pct"], found["tpot_mean_pct"]) == (16.67, 10.0, 10.0)
    assert (found["ttft_mean_abs_pct"], found["ttft_mean_pct"]) == (33.33, 0.0)


def test_all_that_decode_ranks_hold_is_in_flight_and_prefill_has_costs_of_its_own(tmp_path: Path) -> None:
    """Two decode ranks of 4 requests each beside one prefill rank; twice the prompt's time on the other profile shows
    in TTFT alone."""
    tiny = load("cpu/tiny")
    cell = plain_cell({**ROW, "isl": "64", "osl": "16"}, Deployment(), 4)
    assert isinstance(cell, Cell)
    found = []
    for name, factor in (("same", 1.0), ("slow", 0.5)):
        gpu = msgspec.structs.replace(tiny.gpu, peak_flops=factor * tiny.gpu.peak_flops)
        path = save_profile(changed(tiny, gpu=gpu), tmp_path / f"{name}.json")
        scenario = scenario_of(cell, tiny.name, path, 1, 2)
        assert scenario.workload.max_concurrency == 8
        (run,) = compare(scenario, tiny).policies
        found.append((run.mean["mean_tpot_ms"], run.mean["mean_ttft_ms"]))
    assert DisaggCell(cell, Deployment(), 1, 2).decode_ranks == 2
    (tpot, ttft), (slow_tpot, slow_ttft) = found
    assert slow_ttft is not None
    assert ttft is not None
    assert slow_ttft > ttft
    assert slow_tpot == pytest.approx(tpot, rel=0.2)


def test_a_prompt_goes_through_one_front_end(tmp_path: Path) -> None:
    """One request at a time, so that its TTFT is longer than without an engine by its front end and a step."""
    pytest.importorskip(PACKAGE)
    pools = {f"{pool}_{key}": "1" for pool in POOLS for key in ("batch_size", "num_workers", "tp_size", "moe_ep_size")}
    row = {**ROW, **pools, "prefill_attention_dp_size": "1", "model_path": "Qwen/Qwen3-32B", "osl": "16"}
    cell = disagg_cell_of({**row, "system": "h100_sxm"})
    decode = cell.decode
    _, ttft_ms = predicted(cell, tmp_path)
    profile, _ = profile_of(decode.model, decode.gpu, decode.weights, decode.kv, decode.deployment)
    scenario = scenario_of(decode, profile.name, tmp_path / "prefill.json", 1, 1)
    ideal = msgspec.structs.replace(scenario.engine, name="ideal")
    (bare,) = compare(msgspec.structs.replace(scenario, engine=ideal), profile).policies
    engine = load_engine("trtllm-1.1", "h100-sxm")
    front_ms = 1e3 * (engine.frontend_s + engine.frontend_token_s * 0.9 * decode.input_len + engine.step_s)
    assert bare.mean["mean_ttft_ms"] is not None
    assert ttft_ms - bare.mean["mean_ttft_ms"] == pytest.approx(front_ms, abs=1.0)
