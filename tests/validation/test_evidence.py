"""Evidence of served cells: which are in a mean, and that the file is that of the committed tables."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from sim.studies.evidence import CELLS, Evidence, measured
from validation.silicon.evidence import OVER_LENGTHS, by_engine, served, text_of
from validation.silicon.silicon_page import TABLE as SERVED
from validation.tables import csv_rows

ROW = {
    "mode": "agg", "backend": "trtllm", "backend_version": "1.1.0", "model_path": "nvidia/Qwen3-32B-NVFP4",
    "system": "b200_sxm", "gemm_quant_mode": "nvfp4", "tp_size": "8", "attention_dp_size": "1", "moe_tp_size": "1",
    "moe_ep_size": "1", "batch_size": "16", "isl": "1024", "osl": "1024", "silicon_ttft_ms": "100",
    "silicon_tpot_ms": "10", "silicon_data_source": "",
}  # fmt: skip

FITTED: Mapping[str, Mapping[str, object]] = {
    "ratio by tokens and frontend_s of vllm-0.24": {
        "gpu": "a100-sxm", "engine": "vllm-0.24", "method": "none", "workload": "gsm8k",
    },
    "draft_pass_s of vllm-0.24": {
        "gpu": "a100-sxm", "engine": "vllm-0.24", "method": "eagle3", "workload": "gsm8k", "in_flight": 1,
    },
    "gap_s of vllm-0.19": {"gpu": "rtx-pro-6000-server", "engine": "vllm-0.19", "model": "llama-3.1-8b"},
    "step_s of trtllm-1.0": {"gpu": "h100-sxm", "engine": "trtllm-1.0", "model": "llama-3.1-8b", "in_flight": 8},
    "step_s, draft_pass_s and gap_s of sglang-0.5": {
        "gpu": "h200-sxm", "engine": "sglang-0.5", "model": "llama-3.1-8b", "method": "eagle3",
    },
    "Experts.unrelated, chosen after they had been seen": {
        "gpu": "h200-sxm", "model": "gpt-oss-120b", "method": "eagle3", "k": 3,
    },
    "acceptance length of each group of pairs": {"engine": "trtllm-1.1", "method": "mtp"},
}  # fmt: skip
"""Constants fitted on cells or chosen by them (docs/accuracy.md) -> their fields."""


def lines(*errors: tuple[str, str, str]) -> list[dict[str, str]]:
    return [{"id": name, "role": role, "tpot_error_pct": error} for name, role, error in errors]


def test_a_mean_is_over_judged_cells_of_a_gpu_engine_model_and_load() -> None:
    rows = [
        ROW | {"id": name, "batch_size": batch} for name, batch in (("a", "14"), ("b", "16"), ("c", "16"), ("d", "64"))
    ]
    judged = lines(("a", "judged", "-4.0"), ("b", "judged", "2.0"), ("c", "fitted", "9.0"), ("d", "judged", "1.0"))
    few, many = served(rows, judged)
    assert (few.gpu, few.engine, few.model, few.in_flight) == ("b200-sxm", "trtllm-1.1", "qwen3-32b", 16)
    assert (few.error_pct, few.runs) == (3.0, 2)
    assert (many.in_flight, many.error_pct, many.runs) == (64, 1.0, 1)
    assert by_engine([few, many]) == {"trtllm": pytest.approx(2.3)}


def test_the_file_is_that_of_the_committed_tables() -> None:
    """The rows themselves are no part of the repository; names of classes begin with the engine's."""
    plain = [cell for cell in measured().cells if cell.source == OVER_LENGTHS]
    judged = [line for line in csv_rows(SERVED) if line["role"] == "judged"]
    assert sum(cell.runs for cell in plain) == len(judged)
    for engine, error_pct in measured().served_pct.items():
        errors = [abs(float(line["tpot_error_pct"])) for line in judged if line["class"].startswith(f"{engine} ")]
        assert error_pct == pytest.approx(sum(errors) / len(errors), abs=0.1)


def test_no_cell_that_a_constant_was_fitted_on_is_in_the_file() -> None:
    others = [cell for cell in measured().cells if cell.source != OVER_LENGTHS]
    for fields in FITTED.values():
        assert not [cell for cell in others if all(getattr(cell, name) == value for name, value in fields.items())]


def test_the_file_is_as_it_is_written() -> None:
    assert text_of(msgspec.json.decode(CELLS.read_bytes(), type=Evidence)) == CELLS.read_text()
