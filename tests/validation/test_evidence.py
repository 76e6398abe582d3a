"""Evidence of served cells: which are in a mean, and that the file is that of the committed tables."""

from __future__ import annotations

import msgspec
import pytest

from sim.studies.evidence import CELLS, Evidence, measured
from validation.silicon.evidence import FITTED, OVER_LENGTHS, by_engine, fitted_by, served, text_of
from validation.silicon.silicon_page import TABLE as SERVED
from validation.tables import csv_rows

ROW = {
    "mode": "agg", "backend": "trtllm", "backend_version": "1.1.0", "model_path": "nvidia/Qwen3-32B-NVFP4",
    "system": "b200_sxm", "gemm_quant_mode": "nvfp4", "tp_size": "8", "attention_dp_size": "1", "moe_tp_size": "1",
    "moe_ep_size": "1", "batch_size": "16", "isl": "1024", "osl": "1024", "silicon_ttft_ms": "100",
    "silicon_tpot_ms": "10", "silicon_data_source": "",
}  # fmt: skip


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
    assert [cell for cell in measured().cells if fitted_by(cell) is not None] == []


def test_a_cell_is_fitted_where_all_that_names_a_fit_is_the_same() -> None:
    judged = next(cell for cell in measured().cells if (cell.gpu, cell.workload) == ("a100-sxm", "humaneval"))
    fitted = msgspec.structs.replace(judged, workload="gsm8k", method="none")
    assert fitted_by(judged) is None
    assert fitted_by(fitted) == next(iter(FITTED))
    assert fitted_by(msgspec.structs.replace(fitted, source=OVER_LENGTHS)) is None


def test_the_file_is_as_it_is_written() -> None:
    assert text_of(msgspec.json.decode(CELLS.read_bytes(), type=Evidence)) == CELLS.read_text()
