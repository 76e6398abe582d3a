"""A plain version of torch's flash operation, under its name and schema: what a GPU would compute, on the CPU.

torch checks every call against the schema, as it would with the real kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from realrun.model.attention import PAGE_TOKENS


def attended(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, offsets: Any, first_keys: list[int], used: Any
) -> torch.Tensor:
    """Causal attention of ragged queries [tokens, heads, head_dim] with keys of one long sequence [tokens, kv_heads,
    head_dim]; row i's begin at first_keys[i] and it has used[i] of them, the last one the last query's own."""
    out = torch.empty_like(queries)
    group = queries.shape[1] // keys.shape[1]
    for row, (first, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        place = slice(first_keys[row], first_keys[row] + int(used[row]))
        k, v = (part[place].repeat_interleave(group, 1).transpose(0, 1) for part in (keys, values))
        scores = queries[first:end].transpose(0, 1) @ k.transpose(-1, -2) * queries.shape[-1] ** -0.5
        num_queries, num_keys = end - first, k.shape[1]
        hidden = torch.ones(num_queries, num_keys, dtype=torch.bool).triu(num_keys - num_queries + 1)
        out[first:end] = (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(0, 1)
    return out


def plain_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, ...]:
    """aten::_flash_attention_forward, ragged; keys in any order of slots, their numbers as `seqused_k` says, or of
    whole pages, which `block_table` [rows, pages] names."""
    assert is_causal
    assert {cum_seq_q.dtype, cum_seq_k.dtype, seqused_k.dtype} == {torch.int32}
    assert len(cum_seq_q) == len(cum_seq_k) == len(seqused_k) + 1
    assert int(cum_seq_q.diff().max()) <= max_q
    assert int(seqused_k.max()) <= max_k
    if block_table is None:
        first_keys = cum_seq_k.tolist()
    else:
        assert block_table.dtype is torch.int32
        pages, size = block_table.shape[1], key.shape[1]
        assert size % PAGE_TOKENS == 0, "FlashAttention-2 takes pages of multiples of 256 tokens"
        assert block_table.is_contiguous()
        assert pages * size == max_k
        key, value = (stored[block_table.flatten()].flatten(0, 1) for stored in (key, value))
        first_keys = [row * pages * size for row in range(len(block_table))]
    out = attended(query, key, value, cum_seq_q, first_keys, seqused_k)
    none = query.new_empty(0)
    return out, none, none, none, none


@contextmanager
def flash_operations() -> Iterator[None]:
    """torch's operation exists on the CPU, too."""
    flash = torch.library.Library("aten", "IMPL")
    try:
        flash.impl("_flash_attention_forward", plain_flash, "CPU")
        yield
    finally:
        flash._destroy()
