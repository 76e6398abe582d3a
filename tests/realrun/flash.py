"""Plain versions of both flash operations, under their own names and schemas: what a GPU would compute, on the CPU.

torch checks every call against the schema, as it would with the real kernels. fa3-fwd's is pinned, for its wheel loads
beside CUDA's libraries only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from tests.realrun.schemas import FA3_FWD


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
    **_: Any,
) -> tuple[torch.Tensor, ...]:
    """aten::_flash_attention_forward, ragged; keys in any order of slots, their numbers as `seqused_k` says."""
    assert is_causal
    assert {cum_seq_q.dtype, cum_seq_k.dtype, seqused_k.dtype} == {torch.int32}
    assert len(cum_seq_q) == len(cum_seq_k) == len(seqused_k) + 1
    assert int(cum_seq_q.diff().max()) <= max_q
    assert int(seqused_k.max()) <= max_k
    out = attended(query, key, value, cum_seq_q, cum_seq_k.tolist(), seqused_k)
    none = query.new_empty(0)
    return out, none, none, none, none


def plain_flash_3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> tuple[torch.Tensor, ...]:
    """fa3_fwd::fwd with rows that name their slots, ragged queries and used keys."""
    offsets, used, slots = given["cu_seqlens_q"], given["seqused_k"], given["kv_batch_idx"]
    assert given["is_causal"]
    assert {offsets.dtype, used.dtype, slots.dtype} == {torch.int32}
    assert len(offsets) == len(used) + 1 == len(slots) + 1
    assert int(used.max()) <= k.shape[1]
    first_keys = (slots * k.shape[1]).tolist()
    out = attended(q, k.flatten(0, 1), v.flatten(0, 1), offsets, first_keys, used)
    none = q.new_empty(0)
    return out, none, none, none


def fake_flash_3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> tuple[torch.Tensor, ...]:
    """Shapes alone; the parts of a split are in memory until they are put together."""
    splits, (tokens, heads, head_dim) = given["num_splits"], q.shape
    assert splits >= 1, "a number of splits that follows from data cannot be captured"
    parts = splits if splits > 1 else 0
    return (
        torch.empty_like(q),
        q.new_empty(heads, tokens, dtype=torch.float32),
        q.new_empty(parts, heads, tokens, head_dim, dtype=torch.float32),
        q.new_empty(parts, heads, tokens, dtype=torch.float32),
    )


@contextmanager
def flash_operations() -> Iterator[None]:
    """Both operations exist, on the CPU and for fake tensors of a GPU."""
    flash, flash_3 = torch.library.Library("aten", "IMPL"), torch.library.Library("fa3_fwd", "DEF")
    try:
        flash.impl("_flash_attention_forward", plain_flash, "CPU")
        flash_3.define(FA3_FWD)
        flash_3.impl("fwd", _named(plain_flash_3), "CPU")
        flash_3.impl("fwd", _named(fake_flash_3), "Meta")
        sys.modules["fa3_fwd_interface"] = ModuleType("fa3_fwd_interface")
        yield
    finally:
        sys.modules.pop("fa3_fwd_interface", None)
        for library in (flash, flash_3):
            library._destroy()


def _named(function: Any) -> Any:
    """torch hands on positional arguments where a call had keywords that a default precedes: give all their names."""

    def call(*args: Any, **kwargs: Any) -> Any:
        names = [argument.name for argument in torch.ops.fa3_fwd.fwd.default._schema.arguments]
        return function(**dict(zip(names, args, strict=False)), **kwargs)

    return call
