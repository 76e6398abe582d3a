"""Constants of engines: found by GPU and version, and honest where nothing was measured."""

from __future__ import annotations

import msgspec
import pytest

from calibrate.catalogue.derived_profiles import check_divides
from calibrate.catalogue.host_costs import ASSUMED_HOST, ENGINES, all_reduce_of, engine_of, host_costs, vllm_of
from sim.costs.datasheets import DATASHEETS, datasheet, gpu_name
from sim.costs.engine_costs import load_engine
from sim.costs.shapes import MODELS


def test_every_engine_is_of_a_known_gpu() -> None:
    assert {engine.gpu for engine in ENGINES} <= set(DATASHEETS)


def test_a_patch_release_is_its_minor_version() -> None:
    gpu = "rtx-pro-6000-server"
    assert vllm_of(gpu, "0.19.1") == vllm_of(gpu, "0.19") == load_engine("vllm-0.19", gpu)
    assert engine_of(gpu, "0.19.1") is engine_of(gpu, "0.19")


def test_no_version_is_the_newest_whose_all_reduces_are_known() -> None:
    assert engine_of("rtx-pro-6000-server", None).version == "0.19"


@pytest.mark.parametrize("version", [None, "", "0.5.0", "main"])
def test_a_version_of_which_nothing_is_known_adds_nothing(version: str | None) -> None:
    assert vllm_of("h100-sxm", version) is None
    assert host_costs(vllm_of("h100-sxm", version)) is ASSUMED_HOST
    assert ASSUMED_HOST.engine is None
    assert "an engine adds them" in ASSUMED_HOST.source


def test_kernels_measured_inside_an_engine_come_with_its_constants_and_its_source() -> None:
    gpu = "rtx-pro-6000-server"
    engine = load_engine("vllm-0.19", gpu)
    host = host_costs(engine)
    assert (host.engine, host.gap_s, host.step_s, host.row_s) == ("vllm-0.19", 1.736e-3, engine.step_s, engine.row_s)
    assert "fitted on the mean TPOT" in host.source
    assert "an engine adds them" not in host.source


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


def test_models_are_split_only_over_devices_that_divide_their_heads_and_their_mlp() -> None:
    shape = msgspec.structs.replace(MODELS["llama-3.1-8b"], name="odd", heads=32, intermediate=14338)
    check_divides(shape, 2)
    for devices in (0, 3, 4):
        with pytest.raises(ValueError, match=f"tensor_parallel={devices} must divide odd's 32 heads and its MLP"):
            check_divides(shape, devices)


def test_gpus_of_one_chip_have_its_peak() -> None:
    """H200 and GH200 are H100's chip with more memory, or another one."""
    assert {datasheet(name).gpu.peak_flops for name in ("h100-sxm", "h200-sxm", "gh200")} == {989e12}
