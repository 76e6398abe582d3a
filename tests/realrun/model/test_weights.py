# ruff: noqa: E402
"""Random models of exact dimensions, and weights from folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from realrun.model.weights import Family, library_config, load_model, random_model
from sim.costs.shapes import MODELS
from tests.realrun.support import VOCAB, greedy_text, prompts, tiny_model, tiny_shape


@pytest.mark.parametrize(
    "changes", [{}, {"family": Family.QWEN2}, {"tied_embeddings": True}], ids=["llama", "qwen2", "tied"]
)
def test_a_random_model_has_exactly_the_dimensions_asked_for(changes: dict[str, Any]) -> None:
    built = tiny_model(**changes)
    attention, mlp = built.model.layers[0].self_attn, built.model.layers[0].mlp
    assert len(built.model.layers) == 3
    assert [tuple(p.weight.shape) for p in (attention.q_proj, attention.k_proj, attention.o_proj)] == [
        (32, 32),
        (16, 32),
        (32, 32),
    ]
    assert [tuple(p.weight.shape) for p in (mlp.gate_proj, mlp.down_proj)] == [(48, 32), (32, 48)]
    assert tuple(built.lm_head.weight.shape) == (VOCAB, 32)
    assert (built.lm_head.weight is built.model.embed_tokens.weight) == changes.get("tied_embeddings", False)
    assert (attention.q_proj.bias is not None) == ("family" in changes)


@pytest.mark.parametrize(
    "name", ["llama-2-7b", "tinyllama-1.1b", "llama-3.1-8b", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-32b"]
)
def test_the_library_counts_the_parameters_of_the_table(name: str) -> None:
    """But for norms and biases, which the table leaves out: 0.02 % at most."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(library_config(MODELS[name]))
    assert sum(weights.numel() for weights in built.parameters()) == pytest.approx(MODELS[name].params, rel=2e-4)


def test_no_weight_is_zero_and_none_asks_for_a_gradient() -> None:
    for name, parameter in tiny_model(family=Family.QWEN2).named_parameters():
        assert float((parameter == 0).double().mean()) == 0, name
        assert not parameter.requires_grad


def test_greedy_text_of_a_random_model_is_not_one_token_over_and_over() -> None:
    text = greedy_text(tiny_model(), prompts([8])[0], 30)
    assert len(set(text)) > 10


def test_a_model_larger_than_memory_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"tiny in bfloat16 needs .* GiB and cpu has") as refused:
        random_model(tiny_shape(vocab=10**9, hidden=4096, head_dim=1024))
    assert "\n" not in str(refused.value)


def test_real_weights_come_from_a_local_directory(tmp_path: Path) -> None:
    saved = tiny_model()
    saved.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype=torch.float64)
    tokens = torch.tensor(prompts([9]))
    assert torch.equal(loaded(tokens).logits, saved(tokens).logits)
    with pytest.raises(ValueError, match=r"Give a local directory with config\.json"):
        load_model(tmp_path / "absent")


def test_weights_that_are_cut_short_incomplete_or_of_another_shape_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_model().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, file, {"format": "pt"})
    with pytest.raises(ValueError, match="1 tensors are missing or of another shape"):
        load_model(tmp_path)
    save_file({**tensors, name: tensors[name][:-8].clone()}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=str(tmp_path)):
        load_model(tmp_path)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match="the weights cannot be loaded"):
        load_model(tmp_path)


def test_a_pickle_that_is_no_weights_is_refused_and_not_executed(tmp_path: Path) -> None:
    import pickle

    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "executed",)

    model = tiny_model()
    model.config.save_pretrained(tmp_path)
    for content in (b"", b"garbage", b"PK\x03\x04" + 40 * b"\0", pickle.dumps(Runs())):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ValueError, match="the weights cannot be loaded") as refused:
            load_model(tmp_path)
        assert "weights_only" not in str(refused.value)
    assert "Give safetensors" in str(refused.value)
    assert not (tmp_path / "executed").exists()


def test_heads_of_odd_size_are_refused() -> None:
    shape = msgspec.structs.replace(tiny_shape(), head_dim=15)
    with pytest.raises(ValueError, match="head_dim=15 must be even"):
        library_config(shape)
