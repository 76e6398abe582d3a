"""Disaggregated rows: how they are read, what is refused, and what is simulated of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from calibrate.importers.aiconfigurator.deployment import Deployment
from sim.costs.profile_files import changed, load, save_profile
from sim.metrics.summary import summarise
from sim.run.resolve import resolve
from sim.run.simulate import simulate
from validation.silicon.disaggregated import DisaggCell, Judged, classes_of, disagg_cell_of, plain_cell, scenario_of
from validation.silicon.judge import Cell, requests_of

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
    for name, factor in (("same", 1.0), ("slow", 2.0)):
        host = msgspec.structs.replace(tiny.host, gap_s=0.01 * factor)
        path = save_profile(changed(tiny, host=host), tmp_path / f"{name}.json")
        scenario = scenario_of(cell, tiny, path, 1, 2, 8, 40)
        assert scenario.workload.max_concurrency == 8
        run = summarise(simulate(resolve(scenario, tiny, "disaggregated"), 0, requests=requests_of(cell, 40)))
        found.append((run["mean_tpot_ms"], run["mean_ttft_ms"]))
    assert DisaggCell(cell, Deployment(), 1, 2).decode_ranks == 2
    (tpot, ttft), (slow_tpot, slow_ttft) = found
    assert slow_ttft > ttft
    assert slow_tpot == pytest.approx(tpot, rel=0.2)
