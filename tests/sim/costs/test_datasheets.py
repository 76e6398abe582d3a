"""Which datasheet is whose: by what drivers call GPUs."""

from __future__ import annotations

import pytest

from sim.costs.datasheets import DATASHEETS
from sim.costs.profile_files import load, shipped


def test_chips_of_one_name_but_other_kernels_are_two_families() -> None:
    assert DATASHEETS["b200-sxm"].family != DATASHEETS["rtx-5090"].family


def test_memory_is_that_of_profiles_of_the_same_gpu() -> None:
    sheets = {name: (load(name).gpu.memory_bytes, DATASHEETS.get(load(name).gpu.name)) for name in shipped()}
    known = {name: memory / sheet.gpu.memory_bytes for name, (memory, sheet) in sheets.items() if sheet is not None}
    assert "l40s/qwen3-8b" in known
    assert list(known.values()) == pytest.approx([1.0] * len(known), rel=0.01)
