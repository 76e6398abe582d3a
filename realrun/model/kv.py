"""Slotted KV cache: one slot per request, every row with its own length, rolled back by forgetting.

Storage is made once and never grows. The slot after the last one is scratch: padding writes there, so that what is
padding leaves no trace in any request's KV. Contents start as noise, never zeros: kernels run faster on zeros.
Not here: which tokens the rows hold (realrun.kernels.sequences), how they are attended to (realrun.model.attention).

Invariant: positions at or beyond a row's length are garbage that no query sees before it is overwritten.
"""

from __future__ import annotations

from enum import StrEnum

import torch

from realrun.model.memory import check_fits


class KvLayout(StrEnum):
    """Order of the dimensions within one layer; a part of the key of a cost table."""

    HEAD_MAJOR = "slot-head-token"
    TOKEN_MAJOR = "slot-token-head"


class SlottedKv:
    """Keys and values of one model: [layers, slots + 1, kv_heads, max_tokens, head_dim], or token-major."""

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        max_tokens: int,
        head_dim: int,
        layout: KvLayout,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        self.slots, self.kv_heads, self.max_tokens, self.head_dim = slots, kv_heads, max_tokens, head_dim
        self.num_bytes = 2 * layers * (slots + 1) * kv_heads * max_tokens * head_dim * dtype.itemsize
        check_fits(self.num_bytes, f"KV of {slots} slots of {max_tokens} tokens", device)
        self.layout = layout
        is_head_major = layout is KvLayout.HEAD_MAJOR
        inner = (kv_heads, max_tokens) if is_head_major else (max_tokens, kv_heads)
        generator = torch.Generator(device).manual_seed(seed)
        shape = (layers, slots + 1, *inner, head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
        self.values = torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
        self.lengths = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        """Tokens in KV [slots + 1], on the device; the scratch slot's stays 0."""
        self._token_dim = 2 if is_head_major else 1
        self._layers = [(self.keys[index], self.values[index]) for index in range(layers)]

    @property
    def scratch(self) -> int:
        """Index of the slot that belongs to no request."""
        return self.slots

    def write(
        self, layer: int, slots: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store keys and values [tokens, kv_heads, head_dim] at slots and positions [tokens]; lengths stay."""
        stored_keys, stored_values = self._layers[layer]
        if self.layout is KvLayout.HEAD_MAJOR:
            stored_keys[slots, :, positions] = keys
            stored_values[slots, :, positions] = values
        else:
            stored_keys[slots, positions] = keys
            stored_values[slots, positions] = values

    def gathered_shape(self, rows: int, context: int) -> tuple[int, int, int, int]:
        """Shape of `rows` rows cut to `context` tokens, in storage order."""
        inner = (self.kv_heads, context) if self._token_dim == 2 else (context, self.kv_heads)
        return (rows, *inner, self.head_dim)

    def gather(
        self, layer: int, slots: torch.Tensor, context: int, keys_out: torch.Tensor, values_out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the first `context` tokens of `slots` [rows] to the buffers (`gathered_shape`).

        Gives views of them, [rows, kv_heads, context, head_dim].
        """
        keys, values = self._layers[layer]
        torch.index_select(keys.narrow(self._token_dim, 0, context), 0, slots, out=keys_out)
        torch.index_select(values.narrow(self._token_dim, 0, context), 0, slots, out=values_out)
        if self._token_dim == 2:
            return keys_out, values_out
        return keys_out.transpose(1, 2), values_out.transpose(1, 2)

    def pages(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer as stored."""
        return self._layers[layer]

    def set_lengths(self, slots: torch.Tensor, lengths: torch.Tensor) -> None:
        """Commit or roll back: row `slots[i]` now holds `lengths[i]` tokens. The scratch slot's length stays 0."""
        self.lengths[slots] = lengths.masked_fill(slots == self.scratch, 0)
