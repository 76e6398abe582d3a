"""Which datasheet is whose: by what drivers call GPUs."""

from __future__ import annotations

import pytest

from sim.costs.datasheets import DATASHEETS, datasheet_of_device
from sim.costs.profile_files import load, shipped


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
    ],
)
def test_a_gpu_is_known_by_its_drivers_name(device_name: str, name: str) -> None:
    sheet = datasheet_of_device(device_name)
    assert sheet is not None
    assert sheet.gpu.name == name


@pytest.mark.parametrize("device_name", ["NVIDIA A100-SXM4-80GB MIG 3g.40gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"])
def test_a_slice_of_a_gpu_is_not_taken_for_all_of_it(device_name: str) -> None:
    assert datasheet_of_device(device_name) is None


def test_chips_of_one_name_but_other_kernels_are_two_families() -> None:
    assert DATASHEETS["b200-sxm"].family != DATASHEETS["rtx-5090"].family


def test_memory_is_that_of_profiles_of_the_same_gpu() -> None:
    sheets = {name: (load(name).gpu.memory_bytes, DATASHEETS.get(load(name).gpu.name)) for name in shipped()}
    known = {name: memory / sheet.gpu.memory_bytes for name, (memory, sheet) in sheets.items() if sheet is not None}
    assert "l40s/qwen3-8b" in known
    assert list(known.values()) == pytest.approx([1.0] * len(known), rel=0.01)
