"""Plain versions of the operations of vLLM's wheel, under its names and schemas: what a GPU would compute, on the CPU.

Their meaning is that of vLLM's sources (its csrc folder's layer norms, rotary embedding, activations, cache and its
flash-attention); the schemas are pinned, since the wheel loads beside CUDA's libraries only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from realrun.model.attention import PAGE_TOKENS, Attention
from tests.realrun.flash import attended, fake_flash_3
from tests.realrun.schemas import PINNED

SCHEMAS = PINNED["vllm 0.33.0"]


def rms_norm(result: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    assert result.is_contiguous()
    result.copy_(functional.rms_norm(hidden, weight.shape, weight, epsilon))


def fused_add_rms_norm(hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    residual += hidden
    rms_norm(hidden, residual, weight, epsilon)


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    *_: Any,
) -> None:
    """In place; halves paired, cosines before sines in the table."""
    assert is_neox
    assert positions.dtype is torch.int64
    assert cos_sin_cache.dtype is query.dtype
    assert cos_sin_cache.is_contiguous()
    cos, sin = (part.unsqueeze(1) for part in cos_sin_cache[positions].chunk(2, dim=-1))
    for heads in (query, key):
        assert heads.shape[-1] == head_size
        first, second = heads.clone().chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))


def silu_and_mul(result: torch.Tensor, gate_up: torch.Tensor) -> None:
    gate, up = gate_up.chunk(2, dim=-1)
    result.copy_(functional.silu(gate) * up)


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    assert kv_cache_dtype == "auto"
    assert slot_mapping.dtype is torch.int64
    assert k_scale.dtype is v_scale.dtype is torch.float32
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slot_mapping] = new


def paged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any], table: torch.Tensor) -> list[Any]:
    """Ragged queries over keys in pages of `table` [rows, pages]."""
    offsets, used, size = given["cu_seqlens_q"], given["seqused_k"], k.shape[1]
    assert given["is_causal"]
    assert {offsets.dtype, used.dtype, table.dtype} == {torch.int32}
    assert size == PAGE_TOKENS[Attention.VLLM]
    assert table.is_contiguous()
    assert table.shape[1] * size == given["max_seqlen_k"]
    keys, values = (stored[table.flatten()].flatten(0, 1) for stored in (k, v))
    first_keys = [row * given["max_seqlen_k"] for row in range(len(table))]
    return [attended(q, keys, values, offsets, first_keys, used), q.new_empty(0)]


def varlen_fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> list[torch.Tensor]:
    assert given["num_splits"] == 0
    return paged(q, k, v, given, given["block_table"])


def fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> list[torch.Tensor]:
    assert given["scheduler_metadata"] is not None
    assert given["num_splits"] >= 1
    return [*paged(q, k, v, given, given["page_table"]), q.new_empty(0), q.new_empty(0)]


def get_scheduler_metadata(**given: Any) -> torch.Tensor:
    assert len(given["seqused_k"]) == given["batch_size"] == len(given["cu_seqlens_q"]) - 1
    assert given["page_size"] == PAGE_TOKENS[Attention.VLLM]
    return torch.empty(2 * given["batch_size"], dtype=torch.int32, device=given["seqused_k"].device)


def fake_varlen_fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> list[torch.Tensor]:
    return list(fake_flash_3(q, k, v, **(given | {"num_splits": 1})))[:2]


def fake_fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> list[torch.Tensor]:
    return list(fake_flash_3(q, k, v, **given))


def nothing(*_: Any, **__: Any) -> None:
    """Writes in place: no shape comes of it."""


PLAIN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "_C::rms_norm": (rms_norm, nothing),
    "_C::fused_add_rms_norm": (fused_add_rms_norm, nothing),
    "_C::rotary_embedding": (rotary_embedding, nothing),
    "_C::silu_and_mul": (silu_and_mul, nothing),
    "_C_cache_ops::reshape_and_cache_flash": (reshape_and_cache_flash, nothing),
    "_vllm_fa2_C::varlen_fwd": (varlen_fwd, fake_varlen_fwd),
    "_vllm_fa3_C::fwd": (fwd, fake_fwd),
    "_vllm_fa3_C::get_scheduler_metadata": (get_scheduler_metadata, get_scheduler_metadata),
}
"""On the CPU, and for fake tensors of a GPU."""


@contextmanager
def vllm_operations() -> Iterator[None]:
    """They exist as where the wheel is loaded."""
    libraries: dict[str, torch.library.Library] = {}
    try:
        for name, both in PLAIN.items():
            space, operation = name.split("::")
            library = libraries.setdefault(space, torch.library.Library(space, "FRAGMENT"))
            library.define(SCHEMAS[name].partition("::")[2])
            for key, function in zip(("CPU", "Meta"), both, strict=True):
                library.impl(operation, _named(space, operation, function), key)
        yield
    finally:
        for library in libraries.values():
            library._destroy()


def _named(space: str, operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments of the flash operations by name, of the others in order."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not space.startswith("_vllm"):
            return function(*args, **kwargs)
        names = [argument.name for argument in getattr(getattr(torch.ops, space), operation).default._schema.arguments]
        return function(**dict(zip(names, args, strict=False)), **kwargs)

    return call
