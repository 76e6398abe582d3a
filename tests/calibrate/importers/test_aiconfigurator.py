"""Importing kernel tables: a known law is found again, and every defect of a table is one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrate.catalogue.host_costs import ASSUMED_HOST, ENGINES, REDUCE_SOURCE, Engine
from calibrate.importers.aiconfigurator.compact_profile import import_aiconfigurator
from calibrate.importers.aiconfigurator.kernel_files import KernelFiles
from calibrate.importers.aiconfigurator.lookups import REDUCE_RATIO
from sim.costs.engine_costs import own_engine
from sim.costs.forms.build import build_costs
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode
from sim.costs.shapes import MODELS
from sim.interface.work import Kind, Work
from tests.calibrate.support import DATASHEET, decode_attention_ms, gemm_ms, published, write_tables


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = write_tables(tmp_path_factory.mktemp("tables"))
    return import_aiconfigurator(path, "a100-sxm", "llama-3.1-8b", "llama-3.2-1b", revision="abc")


def test_the_law_behind_a_table_is_found_again(profile: Profile) -> None:
    for kind in ("body", "verify_body", "decode", "prefill", "decode_attention", "draft", "draft_body"):
        mean_error_pct = profile.errors[kind].mean_error_pct
        assert mean_error_pct is not None
        assert mean_error_pct < 3.0, kind


def test_a_decode_step_costs_what_the_law_says(profile: Profile) -> None:
    shape = MODELS["llama-3.1-8b"]
    rows, context = 64, 1024
    layer_ms = sum(gemm_ms(rows, columns, depth) for columns, depth in shape.gemms())
    layer_ms += decode_attention_ms(4.0 * rows * context * 8 * 128)
    lower_ms = shape.layers * layer_ms + gemm_ms(rows, shape.vocab, shape.hidden)
    work = Work(kind=Kind.STEP, rows=rows, row_tokens=rows, context_tokens=rows * (context - 1), head_rows=rows)
    device_ms = 1e3 * build_costs(profile).cost(work).device_s
    assert 0.98 * lower_ms < device_ms < 1.06 * lower_ms


def test_provenance_is_in_the_profile_and_the_profile_can_be_written(profile: Profile) -> None:
    assert profile.name == "a100-sxm/llama-3.1-8b+llama-3.2-1b"
    assert "ai-dynamo/aiconfigurator@abc (Apache-2.0)" in profile.source
    assert "vllm 0.14.0" in profile.source
    assert profile.errors["verify"].mean_error_pct is None
    assert decode(encode(profile), "copy") == profile


def test_tensor_parallelism_brings_the_all_reduce(tmp_path: Path) -> None:
    profile = import_aiconfigurator(write_tables(tmp_path), "a100-sxm", "llama-3.1-8b", None, 2)
    assert profile.name == "a100-sxm/llama-3.1-8b-tp2"
    assert profile.kernels.all_reduce is not None
    assert profile.kernels.all_reduce.fixed_s == pytest.approx(1e-5, rel=0.01)
    assert profile.kernels.all_reduce.bytes_per_s == pytest.approx(1e11, rel=0.01)


def test_messages_that_no_pass_sends_do_not_count_in_the_all_reduce(tmp_path: Path) -> None:
    def change(frame: Any) -> Any:
        frame.loc[frame["message_size"] == 128, "latency"] *= 0.1
        return frame

    path = write_tables(tmp_path, custom_allreduce_perf=change)
    reduce = import_aiconfigurator(path, "a100-sxm", "llama-3.1-8b", None, 2).compact.all_reduce
    assert reduce is not None
    assert reduce.fixed_s == pytest.approx(1e-5, rel=0.01)


def test_an_engine_adds_the_gap_of_a_pass(tmp_path: Path) -> None:
    path = write_tables(tmp_path)
    profile = import_aiconfigurator(path, "a100-sxm", "llama-3.1-8b")
    assert profile.host == ASSUMED_HOST
    assert own_engine(profile) is None


def test_published_tables_hold_kernels_and_no_engine() -> None:
    path = published("aiconfigurator")
    profile = import_aiconfigurator(path, "rtx-pro-6000", "llama-3.1-8b")
    assert profile.name == "rtx-pro-6000-server/llama-3.1-8b"
    assert profile.host == ASSUMED_HOST


@pytest.mark.parametrize(
    "engine",
    [engine for engine in ENGINES if engine.source == REDUCE_SOURCE],
    ids=lambda engine: engine.gpu,
)
def test_shipped_all_reduces_are_those_of_the_published_tables(engine: Engine) -> None:
    files = KernelFiles(published("aiconfigurator"), engine.gpu)
    for degree, reduce in engine.all_reduces.items():
        assert files.all_reduce(degree) == reduce
    assert files.used[0].startswith(f"vllm {engine.version}.")


def test_four_gh200_reduce_at_the_rate_of_four_h100_in_service() -> None:
    by_gpu = {engine.gpu: engine.all_reduces for engine in ENGINES}
    assert by_gpu["gh200"][4].bytes_per_s == pytest.approx(by_gpu["h100-sxm"][4].bytes_per_s / REDUCE_RATIO, rel=1e-3)


def test_a_folder_tree_as_in_the_repository_is_read_too(tmp_path: Path) -> None:
    write_tables(tmp_path)
    folder = tmp_path / "data" / "a100_sxm"
    for file in list((tmp_path / "a100_sxm").iterdir()):
        place = folder / file.name.replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(place)
    (tmp_path / "a100_sxm").rmdir()
    assert import_aiconfigurator(tmp_path, "a100-sxm", "llama-3.1-8b").errors["body"].points > 5


Change = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("gemm_perf", lambda frame: None, "no table gemm/vllm/VERSION/gemm_perf.parquet"),
        ("gemm_perf", lambda frame: frame.drop(columns="n"), "no column 'n'"),
        ("gemm_perf", lambda frame: frame.assign(latency=frame.latency - 1.0), "must be positive"),
        ("gemm_perf", lambda frame: frame.assign(latency=frame.latency.where(frame.m > 1)), "not finite"),
        ("gemm_perf", lambda frame: frame[frame.gemm_dtype == "fp8"], "no rows with gemm_dtype 'bfloat16'"),
        ("gemm_perf", lambda frame: frame.assign(m=frame.m.where(frame.m > 1)), "not finite"),
        ("gemm_perf", lambda frame: frame.assign(latency=frame.latency.astype(str)), "'latency' must hold numbers"),
        ("gemm_perf", lambda frame: frame.assign(m=frame.m.astype(str)), "'m' must hold numbers"),
        ("gemm_perf", lambda frame: frame.assign(n=[[-1]] * len(frame)), "'n' must hold numbers, got list"),
        ("gemm_perf", lambda frame: frame.assign(gemm_dtype=[[-1]] * len(frame)), "'gemm_dtype' must hold texts"),
        ("context_attention_perf", lambda frame: frame.assign(window_size="x"), "'window_size' must hold numbers"),
        ("gemm_perf", lambda frame: frame[(frame.n != 2048) | (frame.k != 4096)], "latency of (n=2048, k=4096)"),
        ("gemm_perf", lambda frame: frame.assign(latency=1e3 * frame.latency), "over 50 times"),
        ("gemm_perf", lambda frame: frame.assign(latency=1e-3 * frame.latency), "less than the"),
        ("gemm_perf", lambda frame: frame.rename(columns={"m": "latency", "latency": "m"}), "columns swapped?"),
        ("context_attention_perf", lambda frame: frame.drop(columns="latency"), "no column 'latency'"),
        ("context_attention_perf", lambda frame: frame.assign(latency=1e-3 * frame.latency), "attention takes"),
        ("generation_attention_perf", lambda frame: frame.assign(latency=1e3 * frame.latency), "attention takes"),
        (
            "generation_attention_perf",
            lambda frame: frame.rename(columns={"batch_size": "step", "step": "batch_size"}).assign(
                batch_size=lambda swapped: 8 * swapped.batch_size
            ),
            "are columns swapped?",
        ),
        ("generation_attention_perf", lambda frame: frame.assign(kv_cache_dtype="fp8"), "no bf16 rows"),
    ],
)
def test_a_defect_of_a_table_is_one_line_that_names_it(
    tmp_path: Path, table: str, change: Change, message: str
) -> None:
    path = write_tables(tmp_path, **{table: change})
    with pytest.raises(ValueError) as caught:
        import_aiconfigurator(path, "a100-sxm", "llama-3.1-8b")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_pandas_noted_in_a_table_decides_nothing(tmp_path: Path) -> None:
    """A damaged note was once a KeyError of pyarrow's."""
    import pyarrow.parquet as pq

    path = write_tables(tmp_path)
    (file,) = path.rglob("*gemm_perf.parquet")
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({"pandas": '{"index_columns": ["m"], "columns": [{"no": 1}]}'}), file)
    assert import_aiconfigurator(path, "a100-sxm", "llama-3.1-8b").errors["body"].points > 5


def test_a_missing_folder_or_datasheet_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no folder 'a100_sxm'"):
        import_aiconfigurator(tmp_path, "a100-sxm", "llama-3.1-8b")
    write_tables(tmp_path)
    sheet = tmp_path / "a100_sxm.yaml"
    in_gb = DATASHEET.replace("2.0e+12", "2000.0")
    for text, message in (
        ("gpu: [1, 2", "no datasheet"),
        ("gpu: 7", "no datasheet"),
        (in_gb, "mem_bw=2000 must be at least"),
    ):
        sheet.write_text(text)
        with pytest.raises(ValueError) as caught:
            import_aiconfigurator(tmp_path, "a100-sxm", "llama-3.1-8b")
        assert f"a100_sxm.yaml: {message}" in str(caught.value)
        assert "\n" not in str(caught.value)
    sheet.unlink()
    with pytest.raises(ValueError, match=r"a100_sxm\.yaml: no datasheet"):
        import_aiconfigurator(tmp_path, "a100-sxm", "llama-3.1-8b")


@pytest.mark.parametrize("gpu", ["l40s", "rtx-pro-6000-server"])
def test_published_tables_of_other_gpus_can_be_imported(gpu: str) -> None:
    errors = import_aiconfigurator(published("aiconfigurator"), gpu, "llama-3.1-8b").errors
    assert (errors["body"].mean_error_pct or 100.0) < 6.0
    assert (errors["decode"].mean_error_pct or 100.0) < 6.0


def test_an_all_reduce_in_other_units_is_refused(tmp_path: Path) -> None:
    write_tables(tmp_path, custom_allreduce_perf=lambda frame: frame.assign(latency=1e3 * frame.latency))
    with pytest.raises(ValueError, match="are times not in milliseconds"):
        import_aiconfigurator(tmp_path, "a100-sxm", "llama-3.1-8b", None, 2)


def test_names_and_splits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'a100-sxm'"):
        import_aiconfigurator(tmp_path, "a100-sxn", "llama-3.1-8b")
    with pytest.raises(ValueError, match=r"did you mean 'llama-3\.1-8b'"):
        import_aiconfigurator(tmp_path, "a100-sxm", "llama-3.1-8")
    with pytest.raises(ValueError, match="tensor_parallel=3 must divide"):
        import_aiconfigurator(tmp_path, "a100-sxm", "llama-3.1-8b", None, 3)
