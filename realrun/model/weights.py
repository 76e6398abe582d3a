"""Models to run: exact public dimensions with random weights, or weights from disk.

Nothing here downloads. Not here: the table of dimensions (sim.costs.shapes), the forward pass (realrun.model.decoder).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from realrun.host import cuda
from realrun.model.memory import check_fits
from sim.costs.shapes import ModelShape

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class Family(StrEnum):
    """Family of a model: with QKV biases (qwen2), norms of queries and keys (qwen3), or neither (llama)."""

    LLAMA = "llama"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


LOGIT_STD = 2.5
"""Spread of a random model's logits: sampled text is neither uniform noise (0) nor one token (10 and above)."""
MAX_REASON = 200
"""Characters of a library's message that are passed on."""
QUERY_GAIN = 3.0
"""Times that queries are longer than unit ones: attention that averages makes greedy text repeat itself."""


def random_model(
    shape: ModelShape,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str = "cpu",
    seed: int = 0,
    family: Family | None = None,
) -> PreTrainedModel:
    """A model of `shape`, its random weights scaled to activations near 1. Raises ValueError where memory is short."""
    from transformers import AutoModelForCausalLM

    device = torch.device(device)
    config = library_config(shape, family)
    with torch.device("meta"):
        num_weights = sum(weights.numel() for weights in AutoModelForCausalLM.from_config(config).parameters())
    check_fits(num_weights * dtype.itemsize, f"{shape.name} in {str(dtype).removeprefix('torch.')}", device)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.eval().requires_grad_(False)
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            is_bias = name.endswith("bias")
            parameter.normal_(0.0 if is_bias else 1.0, 0.02, generator=generator)
            continue
        std = parameter.shape[1] ** -0.5
        if "embed_tokens" in name or "lm_head" in name:
            # Rows dot a normed vector of length sqrt(hidden): logits of this spread. Small beside what the layers
            # add, so that a tied head does not just repeat the input token.
            std *= LOGIT_STD
        if "q_proj" in name:
            std *= QUERY_GAIN
        parameter.normal_(0.0, std, generator=generator)
    return model


DAMAGED = (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError)
"""Errors that the library raises for weights that are none: it looks into the file as if it were sound."""


def load_model(
    path: Path | str, *, dtype: torch.dtype = torch.bfloat16, device: torch.device | str = "cpu"
) -> PreTrainedModel:
    """Real weights from a local directory. Raises ValueError where one is missing: the library would fill it in."""
    from pickle import UnpicklingError

    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if not (Path(path) / "config.json").is_file():
        raise ValueError(f"{str(path)!r} has no model. Give a local directory with config.json and weights")
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            weights_only=True,
            output_loading_info=True,
        )
    except cuda.OutOfMemory:
        raise
    except (SafetensorError, UnpicklingError, *DAMAGED) as error:
        reason = " ".join(str(error).split())[:MAX_REASON]
        if isinstance(error, UnpicklingError) or "weights_only" in str(error):
            # The library advises to load it all the same, which would run what is in it.
            reason = "a pickle that is damaged, or holds more than tensors and may run code. Give safetensors"
        raise ValueError(f"{str(path)!r}: the weights cannot be loaded: {reason}") from error
    defects = [str(key) for name in ("missing_keys", "mismatched_keys") for key in loaded[name]]
    if defects:
        raise ValueError(f"{str(path)!r}: {len(defects)} tensors are missing or of another shape, such as {defects[0]}")
    return model.to(device).eval().requires_grad_(False)


def library_config(shape: ModelShape, family: Family | None = None) -> PretrainedConfig:
    """The library's configuration of these dimensions; the family is told from the name unless given. Raises ValueError
    for heads that read the target's features, and for layers of other families."""
    if shape.fused_features or shape.input_features or shape.projects_context:
        raise ValueError(f"{shape.name} is a head on a target's features and has no real passes here. Simulate it only")
    if not shape.is_plain or shape.window or shape.has_query_gate or not shape.is_gated:
        raise ValueError(
            f"{shape.name} has experts, latent attention, a window, an ungated MLP or number formats of its own: no "
            "real passes are written for those. Simulate it only"
        )
    if shape.head_dim % 2:
        raise ValueError(f"{shape.name}: head_dim={shape.head_dim} must be even: rotary embeddings turn pairs of it")
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    made = {Family.LLAMA: LlamaConfig, Family.QWEN2: Qwen2Config, Family.QWEN3: Qwen3Config}
    return made[family or family_of(shape.name)](
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied_embeddings,
        max_position_embeddings=shape.max_context,
    )


def family_of(name: str) -> Family:
    """Family of a model of the table of dimensions, by its name; what is not Qwen is built as Llama."""
    return next((family for family in (Family.QWEN2, Family.QWEN3) if name.startswith(family.value)), Family.LLAMA)
