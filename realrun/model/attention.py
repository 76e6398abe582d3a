"""Attention over slotted KV, in place and at true lengths: one for a GPU, one for a CPU.

Both compute the same thing: query i of a row, at position start + i, sees the row's keys at positions
0..start + i. How many keys a row has is known on the device alone: no shape and no captured graph depends on it.
None is chosen silently: the named kernel is called directly, so neither a mask nor a process-wide switch can put
another one instead, and one that cannot serve the models or the device raises.
Not here: projections and rotary positions (realrun.model.decoder).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from realrun.model.kv import SlottedKv

QUERY_TILE = 128
"""Queries that one block of a fused kernel attends with, those of one KV head together."""
GPU_TILES = 128
"""Blocks that fill a GPU: an A100 has 108 multiprocessors, an H100 132."""
MAX_SPLITS = 16
"""Parts beyond which putting a row's parts together costs more than reading them side by side saves."""


MATH, FLASH = "math", "flash"
"""MATH: two products and a softmax, on a CPU and as reference. FLASH: torch's ragged FlashAttention-2, on a GPU."""
REMOVED = ("flash-3", "vllm", "flash-cpu")
"""Attention that profiles were measured with and that no pass here has any more."""
HALVES = torch.bfloat16, torch.float16
PAGE_TOKENS = 256
"""Tokens of a page of FLASH. FlashAttention-2 splits the keys of rows of several queries only where KV has pages."""


class Rectangle(NamedTuple):
    """Rows of one pass padded to one width. Tensors are int64 [rows]; a row of the scratch slot is absent."""

    slots: torch.Tensor
    starts: torch.Tensor
    """Position of the first query token: tokens of the row already in KV."""
    counts: torch.Tensor
    """Query tokens of the row, 0..width; what lies beyond is padding and leaves no trace in KV."""
    width: int

    @property
    def num_tokens(self) -> int:
        return len(self.slots) * self.width


class AttentionKernel(Protocol):
    def plan(self, rectangles: Sequence[Rectangle]) -> Any:
        """Tensors that the attention of these rows needs, made once per pass and used by every layer."""
        ...

    def run(self, plan: Any, queries: torch.Tensor, layer: int) -> torch.Tensor:
        """Attend with queries [tokens, heads, head_dim] of all rows, whose keys and values are in KV already."""
        ...


def make_attention(heads: int, kv: SlottedKv) -> AttentionKernel:
    """That of the device of `kv`. Raises ValueError for a precision that it does not have."""
    if kv.keys.device.type != "cuda":
        return GatheringAttention(heads, kv)
    if kv.keys.dtype not in HALVES:
        known = " or ".join(str(dtype).removeprefix("torch.") for dtype in HALVES)
        raise ValueError(f"attention on a GPU takes {known}, not {kv.keys.dtype}")
    return FlashAttention(heads, kv)


def attention_on(device: str) -> str:
    """Name of the attention of a device of this type, which keys a cost table."""
    return FLASH if device == "cuda" else MATH


def slot_tokens(device: str, tokens: int) -> int:
    """Tokens of a slot that holds `tokens`: whole pages where attention reads pages."""
    page = PAGE_TOKENS if device == "cuda" else 1
    return -(-tokens // page) * page


def num_splits(tiles: int) -> int:
    """Parts that every row's keys are read in: as many as fill the GPU with `tiles` blocks. By the shape alone."""
    return max(1, min(MAX_SPLITS, GPU_TILES // tiles))


class Reach(NamedTuple):
    """The rows of a pass as one ragged batch; tensors int32."""

    offsets: torch.Tensor
    """First query token of each row [rows + 1], with the number of tokens behind."""
    slots: torch.Tensor
    used: torch.Tensor
    """Keys of each row [rows]. Causal masks align the last query with the last key, so padding queries count too."""
    max_queries: int
    splits: int


def reach_of(rectangles: Sequence[Rectangle], group: int, kv: SlottedKv) -> Reach:
    device, first, tiles = kv.keys.device, 0, 0
    offsets = []
    for rectangle in rectangles:
        rows, end = len(rectangle.slots), first + rectangle.num_tokens
        offsets.append(torch.arange(first, end, rectangle.width, dtype=torch.int32, device=device))
        tiles += rows * kv.kv_heads * -(-rectangle.width * group // QUERY_TILE)
        first = end
    offsets.append(torch.full((1,), first, dtype=torch.int32, device=device))
    used = _joined([rectangle.starts + rectangle.width for rectangle in rectangles])
    return Reach(
        torch.cat(offsets),
        _joined([rectangle.slots for rectangle in rectangles]).int(),
        used.clamp(max=kv.max_tokens).int(),
        max(rectangle.width for rectangle in rectangles),
        num_splits(tiles),
    )


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class FlashAttention:
    """torch's FlashAttention over the pages of all slots; without whole pages, or in torch 2.11, which takes none, over
    all slots as one long sequence, where a row begins where its slot does."""

    def __init__(self, heads: int, kv: SlottedKv) -> None:
        self.group, self.kv = heads // kv.kv_heads, kv
        self._attend = torch.ops.aten._flash_attention_forward.default
        known = {argument.name for argument in self._attend._schema.arguments}
        # torch 2.11 splits by a rule of torch, from the shapes alone.
        self._takes_splits = "num_splits" in known
        self._page = PAGE_TOKENS
        self.has_pages = "block_table" in known and kv.max_tokens % self._page == 0
        self._pages = torch.arange(kv.max_tokens // self._page, dtype=torch.int32, device=kv.keys.device)
        """Pages of the first slot."""

    def plan(self, rectangles: Sequence[Rectangle]) -> tuple[Reach, torch.Tensor]:
        """The reach, with the pages of each row [rows, pages of a slot], or where its keys begin [rows + 1]."""
        reach = reach_of(rectangles, self.group, self.kv)
        if self.has_pages:
            return reach, (reach.slots * len(self._pages)).unsqueeze(1) + self._pages
        # One more than rows: the kernel wants ends as well, and does not read them where `used` is given.
        return reach, torch.nn.functional.pad(reach.slots * self.kv.max_tokens, (0, 1))

    def run(self, plan: tuple[Reach, torch.Tensor], queries: torch.Tensor, layer: int) -> torch.Tensor:
        reach, table = plan
        keys, values = self.kv.layer(layer)
        more: dict[str, Any] = {"num_splits": reach.splits} if self._takes_splits else {}
        if self.has_pages:
            keys, values = (stored.view(-1, self._page, *stored.shape[2:]) for stored in (keys, values))
            more["block_table"] = table
        else:
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        out: torch.Tensor = self._attend(
            queries,
            keys,
            values,
            reach.offsets,
            # With pages nothing of it is read but its length.
            reach.offsets if self.has_pages else table,
            reach.max_queries,
            self.kv.max_tokens,
            0.0,
            True,
            False,
            scale=self.kv.head_dim**-0.5,
            seqused_k=reach.used,
            **more,
        )[0]
        return out


class GatheringAttention:
    """Copies each rectangle's keys and values, and attends with an additive mask. Nothing of this can be captured."""

    def __init__(self, heads: int, kv: SlottedKv) -> None:
        self.group, self.kv = heads // kv.kv_heads, kv
        self._keys_at = torch.arange(kv.max_tokens, device=kv.keys.device)

    def plan(self, rectangles: Sequence[Rectangle]) -> list[_Gathered]:
        return [self._gathered(rectangle) for rectangle in rectangles]

    def _gathered(self, rectangle: Rectangle) -> _Gathered:
        rows, width, kv = len(rectangle.slots), rectangle.width, self.kv
        context = min(int(rectangle.starts.max()) + width, kv.max_tokens)
        last_seen = rectangle.starts.unsqueeze(1) + self._keys_at[:width]
        hidden = self._keys_at[:context] > last_seen.unsqueeze(-1)
        mask = torch.zeros(rows, 1, self.group, width, context, dtype=kv.keys.dtype, device=hidden.device)
        mask.masked_fill_(hidden[:, None, None], float("-inf"))
        shape, like = (rows, context, kv.kv_heads, kv.head_dim), {"dtype": kv.keys.dtype, "device": hidden.device}
        keys, values = torch.empty(shape, **like), torch.empty(shape, **like)
        return _Gathered(rectangle, mask.view(rows, 1, self.group * width, context), keys, values)

    def run(self, plan: list[_Gathered], queries: torch.Tensor, layer: int) -> torch.Tensor:
        parts = queries.split([gathered.rectangle.num_tokens for gathered in plan])
        return _joined([self._run(gathered, part, layer) for gathered, part in zip(plan, parts, strict=True)])

    def _run(self, gathered: _Gathered, queries: torch.Tensor, layer: int) -> torch.Tensor:
        (slots, _, _, width), mask, keys, values = gathered
        rows, kv_heads, head_dim = len(slots), self.kv.kv_heads, self.kv.head_dim
        for stored, copied in zip(self.kv.layer(layer), (keys, values), strict=True):
            torch.index_select(stored[:, : keys.shape[1]], 0, slots, out=copied)
        packed = queries.view(rows, width, kv_heads, self.group, head_dim).permute(0, 2, 3, 1, 4)
        packed = packed.reshape(rows, kv_heads, self.group * width, head_dim)
        out = self._attend(packed, keys.transpose(1, 2), values.transpose(1, 2), mask)
        out = out.view(rows, kv_heads, self.group, width, head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(queries.shape)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """All [rows, kv_heads, tokens, head_dim]; mask [rows, 1, queries, keys]."""
        scale = self.kv.head_dim**-0.5
        wide = torch.float64 if q.dtype is torch.float64 else torch.float32
        scores = torch.matmul(q, k.transpose(-1, -2)) * scale + mask
        return torch.matmul(torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype), v)


class _Gathered(NamedTuple):
    """One rectangle, its mask [rows, 1, queries, keys], and room for its keys and values, used by every layer."""

    rectangle: Rectangle
    mask: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
