"""The forward pass of a Llama- or Qwen-family decoder over slotted KV, written out for ragged batches.

The model is the library's. The loop over its layers is ours, so that positions, lengths and kernels are exact, and
nothing is allocated that the shape does not need. Rows come as rectangles, and body and attention run once over all.
Not here: models (realrun.model.weights), attention kernels (realrun.model.attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from realrun.model.attention import Rectangle, make_attention
from realrun.model.kv import SlottedKv

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FAMILIES = ("llama", "qwen2", "qwen3")
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary scalings whose frequencies do not depend on the sequence at hand."""


class LayerWeights:
    """One layer's tensors, with Q, K, V and gate, up fused; the library's parameters become views of these."""

    def __init__(self, layer: nn.Module) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv, self.qkv_bias = _fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self.gate_up, self.gate_up_bias = _fuse(mlp.gate_proj, mlp.up_proj)
        self.out, self.down = attention.o_proj, mlp.down_proj
        self.input_norm, self.mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.query_norm, self.key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)


class Decoder:
    """A causal language model bound to its own KV cache."""

    def __init__(self, model: PreTrainedModel, *, slots: int, max_tokens: int, seed: int = 0) -> None:
        config = model.config
        _check_supported(config)
        weight = model.lm_head.weight
        self.vocab, self.device, self.dtype = config.vocab_size, weight.device, weight.dtype
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.embedding, self.final_norm, self.head = model.model.embed_tokens, model.model.norm, model.lm_head
        self.layers = [LayerWeights(layer) for layer in model.model.layers]
        self.kv = SlottedKv(
            layers=len(self.layers),
            slots=slots,
            kv_heads=self.kv_heads,
            max_tokens=max_tokens,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
            seed=seed,
        )
        self.attention = make_attention(self.heads, self.kv)
        self._steps = torch.arange(max_tokens, device=self.device)
        cos, sin = model.model.rotary_emb(weight, self._steps.unsqueeze(0))
        half = self.head_dim // 2
        self._cos = cos[0].unsqueeze(1)
        self._signed_sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1).unsqueeze(1)

    def positions(self, rectangle: Rectangle) -> torch.Tensor:
        """Positions [rows, width] of the query tokens; padding is kept inside the slot."""
        steps = self._steps[: rectangle.width]
        return (rectangle.starts.unsqueeze(1) + steps).clamp(max=self.kv.max_tokens - 1)

    def forward(self, tokens: torch.Tensor, rectangles: Sequence[Rectangle]) -> torch.Tensor:
        """Write the KV of all rectangles' `tokens` in order; gives the last layer's normed output [tokens, hidden]."""
        positions, slots = self._places(rectangles)
        cos, sin = self._cos[positions], self._signed_sin[positions]
        plan = self.attention.plan(rectangles)
        hidden = self.embedding(tokens)
        for index, layer in enumerate(self.layers):
            queries, keys, values = self._heads_of(layer, hidden, cos, sin)
            self.kv.write(index, slots, positions, keys, values)
            hidden = _added(layer.out, self.attention.run(plan, queries, index).flatten(1), hidden)
            # What a layer makes on the way is freed before the next one: long prompts are what memory is sized for.
            del queries, keys, values
            hidden = _added(layer.down, _gated(layer, hidden), hidden)
        return _norm(hidden, self.final_norm)

    def _heads_of(
        self, layer: LayerWeights, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values [tokens, heads, head_dim], the former two rotated."""
        qkv = functional.linear(_norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(len(hidden), -1, self.head_dim)
        queries, keys, values = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if layer.query_norm is not None:
            queries, keys = _norm(queries, layer.query_norm), _norm(keys, layer.key_norm)
            rotated = self._rotate(torch.cat((queries, keys), dim=1), cos, sin)
        else:
            rotated = self._rotate(qkv[:, : self.heads + self.kv_heads], cos, sin)
        return (*rotated.split((self.heads, self.kv_heads), dim=1), values)

    def _places(self, rectangles: Sequence[Rectangle]) -> tuple[torch.Tensor, torch.Tensor]:
        """Position and slot [tokens] that each token is written to; padding goes to the scratch slot."""
        positions, slots = [], []
        for rectangle in rectangles:
            is_padding = self._steps[: rectangle.width] >= rectangle.counts.unsqueeze(1)
            positions.append(self.positions(rectangle).flatten())
            owners = rectangle.slots.unsqueeze(1).expand(-1, rectangle.width)
            slots.append(owners.masked_fill(is_padding, self.kv.scratch).flatten())
        if len(rectangles) == 1:
            return positions[0], slots[0]
        return torch.cat(positions), torch.cat(slots)

    def _rotate(self, heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of [tokens, heads, head_dim], halves paired as in the library's Llama."""
        return torch.addcmul(heads * cos, heads.roll(self.head_dim // 2, -1), signed_sin)


def _added(projection: nn.Linear, inputs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """`hidden` and the projection of `inputs`, in one launch where it has no bias."""
    if projection.bias is not None:
        return hidden + projection(inputs)
    return torch.addmm(hidden, inputs, projection.weight.t())


def _gated(layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
    """The MLP before its down projection, [tokens, intermediate]."""
    gate_up = functional.linear(_norm(hidden, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _norm(hidden: torch.Tensor, norm: nn.Module) -> torch.Tensor:
    return functional.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _fuse(*projections: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights [outputs, inputs] and bias of the projections as one, their parameters made views of it."""
    fused = torch.cat([projection.weight.data for projection in projections])
    sizes = [len(projection.weight) for projection in projections]
    for projection, part in zip(projections, fused.split(sizes), strict=True):
        projection.weight.data = part
    if projections[0].bias is None:
        return fused, None
    return fused, torch.cat([projection.bias.data for projection in projections])


def _check_supported(config: PretrainedConfig) -> None:
    """Refuse a model whose forward pass is not the one written here."""
    if config.model_type not in FAMILIES:
        raise ValueError(f"model_type={config.model_type!r} is not supported. Use one of {', '.join(FAMILIES)}")
    if getattr(config, "hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act={config.hidden_act!r} is not supported. Use 'silu'")
    if getattr(config, "use_sliding_window", False) and getattr(config, "sliding_window", None):
        raise ValueError("sliding-window attention is not supported. Set use_sliding_window=false")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in STATIC_ROPE:
        raise ValueError(f"rope_type={rope!r} depends on the sequence length and is not supported")
