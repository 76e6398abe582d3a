"""Targets by the names that people write: Hugging Face repositories and profiles."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from calibrate.catalogue.model_configs import format_names, source_of
from calibrate.catalogue.published_models import LINES, TABLE
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
    assert source_of(written, plain=False).repository == served


def test_every_model_that_has_a_profile_is_a_target() -> None:
    for name in shipped():
        target = load(name).target
        shape = source_of(target.name, plain=False).shape
        assert (shape.layers, shape.hidden, shape.kv_heads) == (target.layers, target.hidden, target.kv_heads), name


def test_every_line_has_a_source_and_as_many_parameters_as_its_name_says_or_a_reason() -> None:
    assert len(TABLE) > 120
    assert len(LINES) == len(TABLE) + sum(len(line.names) for line in TABLE.values()), "a repository stands twice"
    reasons: list[str] = []
    for name, line in TABLE.items():
        assert line.source, name
        try:
            shape = source_of(name, plain=False).shape
        except ValueError as refused:
            reasons.append(str(refused))
            continue
        sizes = re.findall(r"-([\d.]+)([bm])(?![a-z\d])", name.lower())
        if sizes:
            said = max(float(size) * (1e9 if unit == "b" else 1e6) for size, unit in sizes)
            is_active = re.search(r"-\d+e(-|$)", name.lower())
            read = shape.layers * shape.active_layer_weights + shape.head_weights if is_active else shape.params
            assert 0.75 < read / said < 1.7, name
    assert all("no cost form here" in each or "is not understood" in each for each in reasons)
    assert len(reasons) < 0.15 * len(TABLE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Qwen/Qwen3.6-27B", "Qwen/Qwen3.5-27B"),
        ("Qwen/QwQ-32B", "Qwen/Qwen2.5-32B-Instruct"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-V3"),
        ("nvidia/Llama-3.3-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B-Instruct-fp8"),
    ],
)
def test_models_of_one_shape_have_the_same_layers_whatever_their_name(one: str, other: str) -> None:
    named = [msgspec.structs.replace(source_of(name, plain=False).shape, name="same") for name in (one, other)]
    assert named[0] == named[1]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("zai-org/GLM-9.6", None),
        ("mistralai/Mistral-Small-9.2-24B-Instruct", None),
        ("meta-llama/Llama-3.1-8B-Instuct", "Did you mean 'meta-llama/Meta-Llama-3.1-8B-Instruct'?"),
        ("Qwen/Qwen3-9999B", None),
    ],
)
def test_an_unknown_model_is_told_the_command_that_gets_its_config_and_no_other_size(
    name: str, hint: str | None
) -> None:
    with pytest.raises(ValueError, match="unknown model") as refused:
        source_of(name)
    assert f"`hf download {name} config.json --local-dir {name.partition('/')[2]}`" in str(refused.value)
    assert ("Did you mean" in str(refused.value)) == (hint is not None)
    assert (hint or "") in str(refused.value)


def test_a_host_out_of_reach_is_tried_once_and_says_nothing() -> None:
    pytest.importorskip("huggingface_hub")
    code = "from calibrate.catalogue.published_models import downloaded; assert downloaded('no/Model-9B') is None"
    away = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], env=away, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_config_in_the_cache_of_hugging_face_is_read_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "models--some--New-8B-FP8" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(msgspec.json.encode(TABLE["Qwen/Qwen3-8B"].config).decode())
    source = source_of("some/New-8B-FP8")
    assert (source.shape.name, source.shape.layers, source.repository) == ("new-8b", 36, "some/New-8B-FP8")
    assert str(folder / "config.json") in str(source.assumed)
