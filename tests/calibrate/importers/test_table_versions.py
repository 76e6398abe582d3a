"""Of several versions of a table, which one is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from calibrate.importers.aiconfigurator.kernel_files import KernelFiles, NotMeasured
from calibrate.importers.aiconfigurator.lookups import Lookups
from tests.calibrate.importers.test_deployment import lookups_in, sparse_tables
from tests.calibrate.support import gemm_ms, write_tables

Change = Callable[[Any], Any]
"""Of a frame."""


def with_versions(root: Path, **changed: Change | None) -> Path:
    """Tables whose GEMMs are there in versions v1_2 .. as well, with a change each."""
    folder = write_tables(root) / "a100_sxm"
    frame = pd.read_parquet(folder / "gemm__vllm__0.14.0__gemm_perf.parquet")
    for name, change in changed.items():
        version = name.removeprefix("v").replace("_", ".")
        copy = frame if change is None else change(frame)
        copy.to_parquet(folder / f"gemm__vllm__{version}__gemm_perf.parquet")
    return root


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        (None, ["0.31.0", "0.25.0", "0.14.0", "0.9.2", "dev-9f"]),
        ("0.31", ["0.31.0", "0.25.0", "0.14.0", "0.9.2", "dev-9f"]),
        ("0.19", ["0.14.0", "0.9.2", "0.25.0", "0.31.0", "dev-9f"]),
        ("0.14", ["0.14.0", "0.9.2", "0.25.0", "0.31.0", "dev-9f"]),
        ("0.1", ["0.9.2", "0.14.0", "0.25.0", "0.31.0", "dev-9f"]),
    ],
)
def test_versions_no_newer_than_the_engine_come_first_the_nearest_first(
    version: str | None, nearest: list[str], tmp_path: Path
) -> None:
    with_versions(tmp_path, **{"v0_9_2": None, "v0_25_0": None, "v0_31_0": None, "vdev-9f": None})
    files = KernelFiles(tmp_path, "a100-sxm", {"sglang": "0.5", "vllm": version})
    read = []
    for _ in files.versions("vllm", "gemm_perf"):
        read += files.used
    assert (read, files.used) == ([f"vllm {each}" for each in nearest], [])


@pytest.mark.parametrize(
    ("version", "first"),
    [("0.1", "0.25.0"), ("0.25", "0.25.0"), ("0.26", "0.25.0"), ("0.31", "0.31.0"), (None, "0.31.0")],
)
def test_an_engine_older_than_the_current_tables_gets_those(version: str | None, first: str, tmp_path: Path) -> None:
    with_versions(tmp_path, v0_25_0=None, v0_31_0=None)
    slots = "defaults: {vllm: {current: 0.14.0}}\noverrides: {a100_sxm: {vllm: {current: 0.25.0, previous: null}}}\n"
    (tmp_path / "query_versions.yaml").write_text(slots)
    files = KernelFiles(tmp_path, "a100-sxm", {"vllm": version})
    files.rows("vllm", "gemm_perf")
    assert files.used == [f"vllm {first}"]


def test_a_list_of_versions_that_is_none_is_refused(tmp_path: Path) -> None:
    (write_tables(tmp_path) / "query_versions.yaml").write_text("defaults: {vllm: 0.14.0}\n")
    with pytest.raises(ValueError, match=r"query_versions.yaml: defaults.*expected `object`"):
        KernelFiles(tmp_path, "a100-sxm")


def test_rows_that_the_nearest_version_lacks_come_from_the_next(tmp_path: Path) -> None:
    with_versions(tmp_path, v0_31_0=lambda frame: frame[frame.m == 1])
    files = KernelFiles(tmp_path, "a100-sxm")
    assert (files.rows("vllm", "gemm_perf", m=1)["m"] == 1).all()
    assert (files.rows("vllm", "gemm_perf", m=64)["m"] == 64).all()
    assert files.used == ["vllm 0.31.0", "vllm 0.14.0"]
    with pytest.raises(NotMeasured, match="no rows with m 3"):
        files.rows("vllm", "gemm_perf", m=3)


def test_gemms_timed_with_their_launches_come_from_another_version_of_the_engine(tmp_path: Path) -> None:
    with_versions(tmp_path, v0_31_0=lambda frame: frame.assign(latency=frame.latency + 0.1))
    lookups = lookups_in(tmp_path)
    assert lookups.gemm_s(4096, 4096, np.array([64.0])) == pytest.approx(1e-3 * gemm_ms(64, 4096, 4096))
    assert (lookups.files.used, lookups.notes) == (["vllm 0.14.0"], [])


def test_collectives_through_torch_are_passed_over(tmp_path: Path) -> None:
    file = sparse_tables(tmp_path) / "a100_sxm" / "comm__nccl__2.27__nccl_perf.parquet"
    slow = pd.read_parquet(file).assign(kernel_source="torch.distributed", latency=9.0)
    slow.to_parquet(str(file).replace("2.27", "2.30"))
    lookups = lookups_in(tmp_path)
    assert lookups.gather_s(2, np.array([2048.0])) == pytest.approx(2e-3 * (0.02 + 2e-9 * 1024))
    assert lookups.files.used == ["nccl 2.27", "nccl 2.27"]


def test_a_models_matrices_beside_the_grid_are_exact_and_the_grid_stays(tmp_path: Path) -> None:
    """Columns 3000 and depth 5000 were measured as one pair alone."""

    def beside(frame: Any) -> Any:
        one = frame[(frame.n == 4096) & (frame.k == 4096)]
        shorter = one.assign(latency=0.95 * one.latency)
        return pd.concat([frame, shorter.assign(n=3000), shorter.assign(k=5000), frame[frame.k == 4096].assign(n=1)])

    at = np.array([64.0])
    plain = Lookups(KernelFiles(write_tables(tmp_path), "a100-sxm"))
    (tmp_path / "more").mkdir()
    wider = Lookups(KernelFiles(write_tables(tmp_path / "more", gemm_perf=beside), "a100-sxm"))
    measured = 0.95 * plain.gemm_s(4096, 4096, at)
    assert (wider.gemm_s(3000, 4096, at), wider.gemm_s(4096, 5000, at)) == (pytest.approx(measured),) * 2
    assert wider.gemm_s(1, 2048, at) == pytest.approx(plain.gemm_s(512, 2048, at))
    for columns, depth in ((3000, 8192), (4096, 4096), (3500, 9000), (2048, 5000)):
        expected = plain.gemm_s(columns, depth, at)
        assert wider.gemm_s(columns, depth, at) == pytest.approx(expected, rel=1e-9), (columns, depth)
