"""Attention over slotted KV: the implementations, by the name that keys a cost table, and what each needs per pass.

Every implementation computes the same thing for a rectangle of rows: query i of a row, at position start + i, sees the
row's keys at positions 0..start + i. None is chosen silently: the named kernel is called directly, so neither a mask
nor a process-wide switch can put another one in its place, and a kernel that cannot serve the shape raises.
Not here: projections and rotary positions (realrun.model.decoder).
"""

from __future__ import annotations

import inspect
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import torch

from realrun.model.kv import KvLayout, SlottedKv

CONTEXT_STEP = 16
"""Contexts are padded to multiples of this many tokens: fused kernels want aligned masks (16 bytes)."""
PAGE_STEP = 256
"""Page sizes FlashAttention-2 accepts are multiples of this many tokens; here a slot is one page."""


class Attention(StrEnum):
    """Attention implementation. All but FLASH_PAGED first gather the rows' KV into a workspace and take a mask."""

    MATH = "math"
    """Two matrix products and a softmax (float32 or better); any device, the reference."""
    FLASH_CPU = "flash-cpu"
    """torch's fused CPU kernel."""
    EFFICIENT = "efficient"
    """torch's memory-efficient CUDA kernel. Grouped queries are packed, so each key is read once per KV head."""
    FLASH_PAGED = "flash-paged"
    """torch's variable-length FlashAttention over a block table, KV read in place; CUDA, float16 or bfloat16."""


class Rectangle(NamedTuple):
    """Rows of one pass padded to one width. Tensors are int64 [rows]; a row of the scratch slot is absent."""

    slots: torch.Tensor
    starts: torch.Tensor
    """Position of the first query token: tokens of the row already in KV."""
    counts: torch.Tensor
    """Query tokens of the row, 0..width; what lies beyond is padding and leaves no trace in KV."""
    width: int
    context: int
    """Keys to look at: at least the largest start + width, a multiple of CONTEXT_STEP or the whole slot."""


class Plan(NamedTuple):
    """What one rectangle's attention needs, made once per pass and used by every layer."""

    rectangle: Rectangle
    extras: tuple[Any, ...]


class AttentionKernel(Protocol):
    def plan(self, rectangle: Rectangle, workspace: Workspace) -> Plan: ...

    def run(self, plan: Plan, queries: torch.Tensor, kv: SlottedKv, layer: int) -> torch.Tensor:
        """Attend with queries [rows, width, heads, head_dim]; gives [rows, width, heads * head_dim]."""
        ...


class Workspace:
    """Where gathered keys and values go; one per stream, sized for the largest rectangle and never grown."""

    __slots__ = ("keys", "values")

    def __init__(self, *, num_elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.keys = torch.zeros(num_elements, dtype=dtype, device=device)
        self.values = torch.zeros(num_elements, dtype=dtype, device=device)


def make_attention(name: Attention, *, heads: int, kv: SlottedKv) -> AttentionKernel:
    """The kernel called `name`. Raises ValueError where this device, layout or torch cannot run it."""
    on_cuda = kv.keys.device.type == "cuda"
    wanted = {Attention.FLASH_CPU: "cpu", Attention.EFFICIENT: "cuda", Attention.FLASH_PAGED: "cuda"}.get(name)
    if wanted and (wanted == "cuda") != on_cuda:
        raise ValueError(f"attention={name.value!r} runs on {wanted} only; KV is on {kv.keys.device.type}")
    if name is Attention.FLASH_PAGED:
        return PagedAttention(heads, kv)
    return GatheredAttention(name, heads, kv)


class GatheredAttention:
    """Copy the rows' keys and values together, then attend with an additive mask."""

    def __init__(self, name: Attention, heads: int, kv: SlottedKv) -> None:
        self.name = name
        self.group = heads // kv.kv_heads
        self.dtype = kv.keys.dtype
        self.kv = kv
        self._keys_at = torch.arange(kv.max_tokens, device=kv.keys.device)

    def plan(self, rectangle: Rectangle, workspace: Workspace) -> Plan:
        rows, width, context = len(rectangle.slots), rectangle.width, rectangle.context
        last_seen = rectangle.starts.unsqueeze(1) + self._keys_at[:width]
        hidden = self._keys_at[:context] > last_seen.unsqueeze(-1)
        mask = torch.zeros(rows, 1, self.group, width, context, dtype=self.dtype, device=hidden.device)
        mask.masked_fill_(hidden[:, None, None], float("-inf"))
        shape = self.kv.gathered_shape(rows, context)
        num_elements = rows * context * self.kv.kv_heads * self.kv.head_dim
        return Plan(
            rectangle,
            (
                mask.view(rows, 1, self.group * width, context),
                workspace.keys[:num_elements].view(shape),
                workspace.values[:num_elements].view(shape),
            ),
        )

    def run(self, plan: Plan, queries: torch.Tensor, kv: SlottedKv, layer: int) -> torch.Tensor:
        mask, keys_out, values_out = plan.extras
        rows, width, heads, head_dim = queries.shape
        keys, values = kv.gather(layer, plan.rectangle.slots, plan.rectangle.context, keys_out, values_out)
        packed = queries.view(rows, width, kv.kv_heads, self.group, head_dim).permute(0, 2, 3, 1, 4)
        out = self._attend(packed.reshape(rows, kv.kv_heads, self.group * width, head_dim), keys, values, mask)
        out = out.reshape(rows, kv.kv_heads, self.group, width, head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(rows, width, heads * head_dim)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """All [rows, kv_heads, tokens, head_dim]; mask [rows, 1, queries, keys]."""
        scale = q.shape[-1] ** -0.5
        if self.name is Attention.FLASH_CPU:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask, scale=scale)[0]
        if self.name is Attention.EFFICIENT:
            bias = mask.expand(-1, q.shape[1], -1, -1)
            return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, scale=scale)[0]
        wide = torch.float64 if q.dtype is torch.float64 else torch.float32
        scores = torch.matmul(q, k.transpose(-1, -2)) * scale + mask
        return torch.matmul(torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype), v)


class PagedAttention:
    """FlashAttention with a block table of one page per slot: no gather, no mask, exact lengths per row."""

    def __init__(self, heads: int, kv: SlottedKv) -> None:
        from torch.nn.attention import varlen

        if "block_table" not in inspect.signature(varlen.varlen_attn).parameters:
            raise ValueError(
                f"attention='flash-paged' needs block tables, which torch {torch.__version__} lacks; use 'efficient'"
            )
        if kv.layout is not KvLayout.TOKEN_MAJOR or kv.max_tokens % PAGE_STEP:
            raise ValueError(
                f"attention='flash-paged' needs kv_layout={KvLayout.TOKEN_MAJOR.value!r} and max_tokens a multiple of "
                f"{PAGE_STEP}, got {kv.layout.value!r} and {kv.max_tokens}"
            )
        self._varlen_attn = varlen.varlen_attn
        self._is_grouped = heads != kv.kv_heads

    def plan(self, rectangle: Rectangle, workspace: Workspace) -> Plan:
        rows, width = len(rectangle.slots), rectangle.width
        device = rectangle.slots.device
        query_offsets = torch.arange(0, (rows + 1) * width, width, dtype=torch.int32, device=device)
        # Causal masks align the last query with the last key, so padding queries count as keys too.
        used = (rectangle.starts + width).int()
        return Plan(rectangle, (query_offsets, used, rectangle.slots.int().unsqueeze(1)))

    def run(self, plan: Plan, queries: torch.Tensor, kv: SlottedKv, layer: int) -> torch.Tensor:
        query_offsets, used, pages = plan.extras
        rows, width, heads, head_dim = queries.shape
        keys, values = kv.pages(layer)
        out = self._varlen_attn(
            queries.reshape(rows * width, heads, head_dim),
            keys,
            values,
            query_offsets,
            None,
            width,
            plan.rectangle.context,
            window_size=(-1, 0),
            enable_gqa=self._is_grouped,
            seqused_k=used,
            block_table=pages,
        )
        return out.reshape(rows, width, heads * head_dim)
