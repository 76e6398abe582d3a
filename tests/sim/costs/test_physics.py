"""Profiles that no GPU can be, refused where a user's file is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from sim.cli.main import run
from sim.costs.compact_kernels import LinearKernels, LinearPass
from sim.costs.forms.physics import check_physics
from sim.costs.profile import Profile
from sim.costs.profile_files import encode, load, shipped
from sim.costs.table_kernels import TableKernels


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_profile_is_possible(name: str) -> None:
    check_physics(load(name))


def faster_table(profile: Profile) -> Profile:
    """All times of the target's layers a third."""
    kernels = profile.kernels
    assert isinstance(kernels, TableKernels)
    body = kernels.target.body
    body = msgspec.structs.replace(body, seconds=tuple(seconds / 3.0 for seconds in body.seconds))
    target = msgspec.structs.replace(kernels.target, body=body)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(kernels, target=target))


def faster_roofs(profile: Profile) -> Profile:
    """A GPU three times as fast under the same name."""
    gpu = profile.gpu
    gpu = msgspec.structs.replace(
        gpu, peak_flops=3.0 * gpu.peak_flops, bandwidth_bytes_per_s=3.0 * gpu.bandwidth_bytes_per_s
    )
    return msgspec.structs.replace(profile, gpu=gpu)


def faster_line(profile: Profile) -> Profile:
    assert isinstance(profile.kernels, LinearKernels)
    line = LinearPass(pass_s=1e-5)
    return msgspec.structs.replace(profile, kernels=msgspec.structs.replace(profile.kernels, target=line))


def unknown_chip(profile: Profile) -> Profile:
    """A hundred times as fast, and of no name: beyond every chip."""
    gpu = msgspec.structs.replace(profile.gpu, name="x1", bandwidth_bytes_per_s=3e14, peak_flops=1e17)
    return msgspec.structs.replace(profile, gpu=gpu)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("h100-sxm/gpt-oss-120b", faster_table, "by the roofs of the data sheet of h100-sxm it takes"),
        ("a100-sxm/llama-3.1-8b", faster_table, "by the roofs of the data sheet of a100-sxm it takes"),
        ("h100-sxm/llama-2-7b", faster_roofs, "a pass of llama-2-7b over 1 rows of 1 with 1024 of context takes"),
        ("rtx-4090/qwen3-8b", faster_roofs, "by the roofs of the data sheet of rtx-4090"),
        ("rtx-3070-laptop/qwen2.5-1.5b", faster_line, "by the roofs of any GPU"),
        ("h100-sxm/codellama-34b", unknown_chip, "by the roofs of any GPU"),
    ],
)
def test_an_impossible_profile_is_one_line_that_names_pass_time_and_the_least_possible(
    name: str, change: Callable[[Profile], Profile], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(encode(change(load(name))))
    for command in (["profiles", "show", str(path)], ["check", str(path)]):
        assert run(command) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert says in errors
        assert "p.json" in errors


def test_the_least_time_of_a_decode_is_what_it_reads_beyond_the_cache_over_the_bandwidth() -> None:
    """Llama-2-7B: 32 layers of 4 x 4096^2 + 3 x 4096 x 11008 weights and 32,000 x 4096 of the LM head, 2 bytes each;
    1,025 tokens of 32 x 2 x 4096 keys and values; less 256 MB, at 3.35 TB/s. Of the embedding one row is read."""
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32_000 * 4096
    num_bytes = 2 * (weights + 1025 * 32 * 2 * 4096) - 256e6
    with pytest.raises(ValueError, match=rf"it takes {1e3 * num_bytes / 3.35e12:.3g} ms at least"):
        check_physics(faster_roofs(load("h100-sxm/llama-2-7b")))


def test_the_least_time_of_a_prompt_is_its_flops_over_the_peak() -> None:
    """2,048 tokens through all layers, each attending to half of them in the mean, and the LM head for the last."""
    profile = load("h100-sxm/llama-2-7b")
    gpu = msgspec.structs.replace(profile.gpu, peak_flops=3.0 * profile.gpu.peak_flops)
    layers = 2048 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    flops = 2.0 * (layers + 32 * 4096 * 2048**2 + 32_000 * 4096)
    with pytest.raises(ValueError, match=rf"a prompt of 2048 takes .* it takes {1e3 * flops / 989e12:.3g} ms at least"):
        check_physics(msgspec.structs.replace(profile, gpu=gpu))


def test_a_slower_gpu_of_its_own_and_models_that_fit_the_cache_are_as_good_as_before(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profile = load("h100-sxm/llama-2-7b")
    slower = msgspec.structs.replace(profile.gpu, bandwidth_bytes_per_s=1e12)
    path.write_bytes(encode(msgspec.structs.replace(profile, gpu=slower)))
    assert load(path).gpu.bandwidth_bytes_per_s == 1e12
    path.write_bytes(encode(faster_roofs(load("cpu/tiny"))))
    assert load(path).name == "cpu/tiny"
