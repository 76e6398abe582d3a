"""Importing kernel tables: the law behind a table makes the cost, and every defect of a table is one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from calibrate.catalogue.derived_profiles import all_reduce_of
from calibrate.importers.aiconfigurator.deployment import ASSUMED_HOST, Deployment, import_deployment
from calibrate.importers.aiconfigurator.kernel_files import AttentionTable
from calibrate.importers.aiconfigurator.lookups import REDUCE_RATIO
from sim.costs.engine_costs import own_engine
from sim.costs.profile import Profile
from sim.costs.profile_files import decode, encode
from sim.costs.shapes import MODELS
from tests.calibrate.support import DATASHEET, write_tables
from tests.properties import assert_refused

LLAMA = MODELS["llama-3.1-8b"]


def imported(path: Path, gpu: str = "a100-sxm", tensor_parallel: int = 1) -> Profile:
    return import_deployment(path, gpu, LLAMA, MODELS["llama-3.2-1b"], Deployment(tensor_parallel), source="abc")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return imported(write_tables(tmp_path_factory.mktemp("tables")))


def test_a_profile_says_where_it_is_from_and_has_no_engine(profile: Profile) -> None:
    assert profile.name == "a100-sxm/llama-3.1-8b+llama-3.2-1b"
    assert "ai-dynamo/aiconfigurator@abc (Apache-2.0)" in profile.source
    assert "vllm 0.14.0" in profile.source
    assert profile.errors["verify"].mean_error_pct is None
    assert profile.host == ASSUMED_HOST
    assert own_engine(profile) is None
    assert decode(encode(profile), "copy") == profile


def test_four_gh200_reduce_at_the_rate_of_four_h100_in_service() -> None:
    served, timed = (all_reduce_of(gpu, 4).bytes_per_s for gpu in ("gh200", "h100-sxm"))
    assert served == pytest.approx(timed / REDUCE_RATIO, rel=1e-3)
    with pytest.raises(ValueError, match=r"no all-reduce of 3 GPUs is known for 'a100-sxm'\. Measured: a100-sxm"):
        all_reduce_of("a100-sxm", 3)


def test_a_folder_tree_as_in_the_repository_is_read_too(tmp_path: Path, profile: Profile) -> None:
    write_tables(tmp_path)
    folder = tmp_path / "data" / "a100_sxm"
    for file in list((tmp_path / "a100_sxm").iterdir()):
        path = folder / file.name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        file.rename(path)
    (tmp_path / "a100_sxm").rmdir()
    assert imported(tmp_path).kernels == profile.kernels


Change = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("gemm_perf", lambda frame: None, "no GEMMs with weights in bf16 in the tables of 'a100-sxm'"),
        ("gemm_perf", lambda frame: frame.drop(columns="n"), "no column 'n'"),
        ("gemm_perf", lambda frame: frame.assign(latency=frame.latency - 1.0), "must be positive"),
        ("gemm_perf", lambda frame: frame.assign(m=frame.m.where(frame.m > 1)), "not finite"),
        ("gemm_perf", lambda frame: frame.assign(latency=frame.latency.astype(str)), "'latency' must hold numbers"),
        ("gemm_perf", lambda frame: frame.assign(n=[[-1]] * len(frame)), "'n' must hold numbers, got list"),
        ("gemm_perf", lambda frame: frame.assign(gemm_dtype=[[-1]] * len(frame)), "'gemm_dtype' must hold texts"),
        ("context_attention_perf", lambda frame: frame.assign(window_size="x"), "'window_size' must hold numbers"),
        ("gemm_perf", lambda frame: frame.assign(latency=1e3 * frame.latency), "over 50 times"),
        ("gemm_perf", lambda frame: frame.assign(latency=1e-3 * frame.latency), "less than the"),
        ("context_attention_perf", lambda frame: frame.assign(latency=1e-3 * frame.latency), "less than the"),
        (
            "generation_attention_perf",
            lambda frame: frame.rename(columns={"batch_size": "step", "step": "batch_size"}).assign(
                batch_size=lambda swapped: 8 * swapped.batch_size
            ),
            "Are columns swapped?",
        ),
        ("generation_attention_perf", lambda frame: frame.assign(kv_cache_dtype="fp8"), "no rows with bf16 KV"),
    ],
)
def test_a_defect_of_a_table_is_one_line_that_names_it(
    tmp_path: Path, table: str, change: Change, message: str
) -> None:
    path = write_tables(tmp_path, **{table: change})
    assert_refused(lambda: imported(path), message)


def test_what_pandas_noted_in_a_table_decides_nothing(tmp_path: Path, profile: Profile) -> None:
    """A damaged note was once a KeyError of pyarrow's."""
    path = write_tables(tmp_path)
    (file,) = path.rglob("*gemm_perf.parquet")
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({"pandas": '{"index_columns": ["m"], "columns": [{"no": 1}]}'}), file)
    assert imported(path).kernels == profile.kernels


def test_a_missing_folder_or_datasheet_and_an_unknown_gpu_are_named(tmp_path: Path) -> None:
    assert_refused(lambda: imported(tmp_path, "a100-sxn"), "Did you mean 'a100-sxm'")
    assert_refused(lambda: imported(tmp_path), "no folder 'a100_sxm'")
    write_tables(tmp_path)
    sheet = tmp_path / "a100_sxm.yaml"
    in_gb = DATASHEET.replace("2.0e+12", "2000.0")
    for text, message in (("gpu: [1, 2", "no datasheet"), ("gpu: 7", "no datasheet"), (in_gb, "mem_bw=2000.0 and")):
        sheet.write_text(text)
        assert_refused(lambda: imported(tmp_path), f"a100_sxm.yaml: {message}")
    sheet.unlink()
    assert_refused(lambda: imported(tmp_path), "a100_sxm.yaml: no datasheet")


def test_a_point_that_reads_slower_than_memory_could_is_not_flattered_by_the_cache() -> None:
    """64 MB of KV beside 100 MB of L2 and 8 TB/s, which would take 8 us: 31 us are waiting, 10 us are not."""
    contexts, kv_heads, seconds = (131072.0, 131072.0, 1024.0), (1.0, 1.0, 1.0), (31e-6, 10e-6, 9e-6)
    one, dim = np.ones(3), np.full(3, 128.0)
    points = AttentionTable(one, np.array(contexts), 6.0 * one, np.array(kv_heads), dim, np.array(seconds))
    assert points.outside_l2(1e8, 8e12).tolist() == [True, False, True]
    assert points.outside_l2(1e8, 0.0).tolist() == [False, False, True]
