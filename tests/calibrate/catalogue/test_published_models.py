"""Targets by the names that people write: Hugging Face repositories and profiles."""

from __future__ import annotations

import pytest

from calibrate.catalogue.model_configs import format_names, source_of
from calibrate.catalogue.published_models import config_names, config_of
from sim.costs.profile_files import load, shipped


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8-block"),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "qwen3-32b-fp8-kv8"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b-nvfp4-kv8"),
        ("deepseek-v3", "deepseek-v3-fp8-block"),
        ("openai/gpt-oss-120b", "gpt-oss-120b-mxfp4"),
        ("Qwen/Qwen3-8B-FP8", "qwen3-8b-fp8-block"),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "qwen3-32b-fp8"),
        ("nvidia/Qwen3-32B-FP8", "qwen3-32b-fp8"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b-int4"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b-int4"),
        ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "llama-3.1-8b-nvfp4"),
        ("unsloth/DeepSeek-V3-bf16", "deepseek-v3"),
    ],
)
def test_a_repository_is_its_layers_in_the_formats_of_its_checkpoint(written: str, name: str) -> None:
    pytest.importorskip("aiconfigurator_core")
    shape = source_of(written, plain=False).shape
    assert shape.name + format_names(shape) == name


@pytest.mark.parametrize(
    ("written", "served"),
    [
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8"),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "RedHatAI/Qwen3-32B-FP8-dynamic"),
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("qwen3-32b-awq", None),
    ],
)
def test_what_is_served_is_the_repository_that_was_named_or_that_of_the_config(
    written: str, served: str | None
) -> None:
    pytest.importorskip("aiconfigurator_core")
    assert source_of(written, plain=False).repository == served


def test_a_config_that_is_a_file_is_of_no_repository() -> None:
    pytest.importorskip("aiconfigurator_core")
    path = config_of("Qwen/Qwen3-8B")
    assert path is not None
    assert source_of(str(path)).repository is None


def test_every_model_that_has_a_profile_is_a_target() -> None:
    pytest.importorskip("aiconfigurator_core")
    for name in shipped():
        target = load(name).target
        shape = source_of(target.name, plain=False).shape
        assert (shape.layers, shape.hidden, shape.kv_heads) == (target.layers, target.hidden, target.kv_heads), name


def test_every_published_config_is_read_or_refused_for_what_it_has() -> None:
    pytest.importorskip("aiconfigurator_core")
    names = config_names()
    refused: list[str] = []
    assert len(names) > 50
    for name in names:
        try:
            source_of(name, plain=False)
        except ValueError as error:
            refused.append(str(error))
    assert all("_config.json: " in line or "is no number" in line for line in refused)
    assert len(refused) < len(names) / 2
