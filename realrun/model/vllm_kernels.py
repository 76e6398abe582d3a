"""A decoder on vLLM's CUDA kernels: what its engine launches in a layer where nothing was compiled for the model.

The libraries of vLLM's wheel name no symbol of torch's C++ interface, so they load beside a plain torch of CUDA 13;
none of vLLM's Python runs. Norms with the residual added, rotary embedding, gate, the write into KV and attention
(FlashAttention-3 on Hopper, else 2, over pages) are its kernels, matrix products are torch's, as in vLLM. What vLLM's
compiled mode fuses further (its default: norms and gates that Inductor generates) is not here, nor are the attentions
that it takes on Blackwell data-centre GPUs. Not here: what computes the same with torch alone (realrun.model.decoder).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from realrun.host import cuda
from realrun.model.attention import PAGE_TOKENS, Attention, Reach, Rectangle, check_runs, reach_of
from realrun.model.decoder import Decoder, LayerWeights
from realrun.model.kv import SlottedKv

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HOPPER = "9.0"
"""Compute capability that FlashAttention-3 is written for."""
VERSION = "0.33.0"
"""Whose operations these are: others have other arguments."""
LIBRARIES = "_C_stable_libtorch", "vllm_flash_attn/_vllm_fa2_C", "vllm_flash_attn/_vllm_fa3_C"
INSTALL = f"pip install --no-deps vllm=={VERSION}"


class Operations(NamedTuple):
    """vLLM's compiled operations, one namespace of torch.ops per library."""

    layer: ModuleType
    cache: ModuleType
    flash_2: ModuleType
    flash_3: ModuleType


def operations() -> Operations:
    """Raises ValueError where vLLM's wheel is not installed, is another version, or does not load beside this torch."""
    if not _are_loaded():
        _load()
    ops = torch.ops
    return Operations(ops._C, ops._C_cache_ops, ops._vllm_fa2_C, ops._vllm_fa3_C)


def _are_loaded() -> bool:
    return all(hasattr(torch.ops._vllm_fa3_C, name) for name in ("fwd", "get_scheduler_metadata"))


def _load() -> None:
    spec = util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"attention='vllm' needs vLLM's wheel, not its dependencies: {INSTALL}")
    if (version := metadata.version("vllm")) != VERSION:
        raise ValueError(f"attention='vllm' knows the kernels of vLLM {VERSION}, not {version}: {INSTALL}")
    folder = Path(spec.submodule_search_locations[0])
    for name in LIBRARIES:
        try:
            torch.ops.load_library(folder / f"{name}.abi3.so")
        except OSError as error:
            raise ValueError(f"attention='vllm': {error}; it wants a torch of CUDA 13, or use 'flash'") from None


class VllmAttention:
    """Attention over pages of 16 tokens, vLLM's default; a slot is so many of them in a row."""

    def __init__(self, heads: int, kv: SlottedKv, *, is_hopper: bool) -> None:
        self.heads, self.group, self.kv, self.is_hopper = heads, heads // kv.kv_heads, kv, is_hopper
        self._ops, self._page = operations(), PAGE_TOKENS[Attention.VLLM]
        if kv.max_tokens % self._page:
            raise ValueError(
                f"attention='vllm' wants slots of whole pages: {kv.max_tokens} tokens are no multiple of 16"
            )
        self._pages = torch.arange(kv.max_tokens // self._page, dtype=torch.int32, device=kv.keys.device)
        """Pages of the first slot [pages of a slot]; those of slot i lie i times as many further on."""

    def plan(self, rectangles: Sequence[Rectangle]) -> tuple[Reach, torch.Tensor, torch.Tensor | None]:
        """The reach of `rectangles`, the pages of each row [rows, pages of a slot], and on Hopper the schedule that all
        layers share."""
        reach, kv = reach_of(rectangles, self.group, self.kv), self.kv
        table = (reach.slots * len(self._pages)).unsqueeze(1) + self._pages
        if not self.is_hopper:
            return reach, table, None
        schedule = self._ops.flash_3.get_scheduler_metadata(
            batch_size=len(reach.slots),
            max_seqlen_q=reach.max_queries,
            max_seqlen_k=kv.max_tokens,
            num_heads=self.heads,
            num_heads_k=kv.kv_heads,
            headdim=kv.head_dim,
            headdim_v=kv.head_dim,
            qkv_dtype=kv.keys.dtype,
            seqused_k=reach.used,
            cu_seqlens_q=reach.offsets,
            cu_seqlens_k=None,
            cu_seqlens_k_new=None,
            seqused_q=None,
            leftpad_k=None,
            page_size=self._page,
            max_seqlen_k_new=0,
            is_causal=True,
            window_size_left=-1,
            window_size_right=-1,
            has_softcap=False,
            num_splits=reach.splits,
            pack_gqa=None,
            sm_margin=0,
        )
        return reach, table, schedule

    def run(
        self, plan: tuple[Reach, torch.Tensor, torch.Tensor | None], queries: torch.Tensor, layer: int
    ) -> torch.Tensor:
        reach, table, schedule = plan
        keys, values = (stored.view(-1, self._page, *stored.shape[2:]) for stored in self.kv.layer(layer))
        both: dict[str, Any] = {
            "out": None,
            "cu_seqlens_q": reach.offsets,
            "seqused_k": reach.used,
            "max_seqlen_q": reach.max_queries,
            "max_seqlen_k": self.kv.max_tokens,
            "leftpad_k": None,
            "softmax_scale": self.kv.head_dim**-0.5,
            "is_causal": True,
            "window_size_left": -1,
            "window_size_right": -1,
            "softcap": 0.0,
        }
        out: torch.Tensor
        if not self.is_hopper:
            out, *_ = self._ops.flash_2.varlen_fwd(
                queries,
                keys,
                values,
                # Nothing of it is read where `seqused_k` is given.
                cu_seqlens_k=reach.offsets,
                block_table=table,
                alibi_slopes=None,
                p_dropout=0.0,
                zero_tensors=False,
                return_softmax=False,
                # As vLLM has it: by its rule, from the slots' length and the rows.
                num_splits=0,
                gen=None,
                **both,
            )
            return out
        nothing = dict.fromkeys(
            (
                *("k_new", "v_new", "q_v", "cu_seqlens_k", "cu_seqlens_k_new", "seqused_q", "kv_batch_idx"),
                *("rotary_cos", "rotary_sin", "seqlens_rotary", "q_descale", "k_descale", "v_descale"),
                *("pack_gqa", "s_aux", "cp_tot_seqused_k"),
            )
        )
        out, *_ = self._ops.flash_3.fwd(
            queries,
            keys,
            values,
            page_table=table,
            is_rotary_interleaved=True,
            scheduler_metadata=schedule,
            num_splits=reach.splits,
            sm_margin=0,
            cp_world_size=1,
            cp_rank=0,
            **both,
            **nothing,
        )
        return out


class VllmDecoder(Decoder):
    """The same pass in eleven launches a layer, or thirteen with norms of queries and keys."""

    def __init__(self, model: PreTrainedModel, **sizes: Any) -> None:
        super().__init__(model, **sizes)
        self._ops, half = operations(), self.head_dim // 2
        self._cos_sin = torch.cat((self._cos[:, 0, :half], self._signed_sin[:, 0, half:]), dim=-1).contiguous()
        self._unscaled = torch.ones((), dtype=torch.float32, device=self.device)

    def _make_attention(self, name: Attention) -> VllmAttention:
        check_runs(name, self.kv)
        return VllmAttention(self.heads, self.kv, is_hopper=cuda.properties().capability == HOPPER)

    def forward(self, tokens: torch.Tensor, rectangles: Sequence[Rectangle]) -> torch.Tensor:
        positions, slots = self._places(rectangles)
        written = slots * self.kv.max_tokens + positions
        plan = self.attention.plan(rectangles)
        residual = self.embedding(tokens)
        hidden = self._normed(residual, self.layers[0].input_norm)
        for index, layer in enumerate(self.layers):
            if index:
                self._add_and_norm(hidden, residual, layer.input_norm)
            queries, keys, values = self._heads(layer, hidden)
            self._ops.layer.rotary_embedding(positions, queries, keys, self.head_dim, self._cos_sin, True)
            self._ops.cache.reshape_and_cache_flash(
                keys, values, *self.kv.layer(index), written, "auto", self._unscaled, self._unscaled
            )
            hidden = layer.out(self.attention.run(plan, queries, index).flatten(1))
            del queries, keys, values
            self._add_and_norm(hidden, residual, layer.mlp_norm)
            gate_up = functional.linear(hidden, layer.gate_up, layer.gate_up_bias)
            gated = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
            self._ops.layer.silu_and_mul(gated, gate_up)
            hidden = layer.down(gated)
        self._add_and_norm(hidden, residual, self.final_norm)
        return hidden

    def _heads(self, layer: LayerWeights, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values [tokens, heads, head_dim], not rotated yet."""
        qkv = functional.linear(hidden, layer.qkv, layer.qkv_bias).view(len(hidden), -1, self.head_dim)
        queries, keys, values = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if layer.query_norm is not None:
            queries, keys = self._normed(queries, layer.query_norm), self._normed(keys, layer.key_norm)
        return queries, keys, values

    def _normed(self, hidden: torch.Tensor, norm: nn.Module) -> torch.Tensor:
        out = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
        self._ops.layer.rms_norm(out, hidden, norm.weight, norm.variance_epsilon)
        return out

    def _add_and_norm(self, hidden: torch.Tensor, residual: torch.Tensor, norm: nn.Module) -> None:
        """`residual` becomes the sum of both, `hidden` its norm."""
        self._ops.layer.fused_add_rms_norm(hidden, residual, norm.weight, norm.variance_epsilon)
