"""Constants of engines: found by GPU and version, and honest where nothing was measured."""

from __future__ import annotations

import pytest

from calibrate.hardware.datasheets import DATASHEETS, datasheet, gpu_name
from calibrate.hardware.engines import ASSUMED_HOST, ENGINES, all_reduce_of, engine_of, host_costs


def test_every_engine_is_of_a_known_gpu() -> None:
    assert {engine.gpu for engine in ENGINES} <= set(DATASHEETS)


def test_a_patch_release_is_its_minor_version() -> None:
    assert (
        engine_of("rtx-pro-6000-server", "0.19.1").gap_s == engine_of("rtx-pro-6000-server", "0.19").gap_s == 1.354e-3
    )


def test_no_version_is_the_newest_that_is_known() -> None:
    assert engine_of("rtx-pro-6000-server", None).version == "0.19"


def test_an_unknown_engine_has_no_gap_and_says_that_it_was_not_measured() -> None:
    for gpu, version in (("l4", None), ("rtx-pro-6000-server", "0.24.0")):
        host = host_costs(engine_of(gpu, version))
        assert host.gap_s == 0.0
        assert "not measured" in host.source


def test_a_known_gap_comes_with_its_source() -> None:
    host = host_costs(engine_of("rtx-pro-6000-server", "0.19.0"))
    assert host.gap_s == 1.354e-3
    assert "fitted on the mean TPOT" in host.source
    assert (host.step_s, host.row_s) == (0.0, ASSUMED_HOST.row_s)
    assert "hidden by asynchronous scheduling" in host.source


def test_a_given_gap_replaces_the_engines() -> None:
    host = host_costs(engine_of("rtx-pro-6000-server", "0.19.0"), 2e-3)
    assert host.gap_s == 2e-3
    assert "gap_s 0.002 as given" in host.source


def test_a_single_gpu_needs_no_all_reduce() -> None:
    assert all_reduce_of(engine_of("rtx-4090", "0.19"), 1) is None


def test_an_all_reduce_that_is_not_known_is_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"no all-reduce of 3 GPUs is known for 'a100-sxm' with vLLM 0.14; known: a100"
    ):
        all_reduce_of(engine_of("a100-sxm", "0.14"), 3)


def test_a_gpu_has_one_datasheet_by_all_its_names() -> None:
    assert datasheet("rtx-pro-6000") is datasheet("rtx-pro-6000-server")
    assert gpu_name("h100-sxm") == "h100-sxm"
