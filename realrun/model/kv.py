"""Slotted KV cache: one slot per request, every row with its length, rolled back by forgetting.

Storage is made once and never grows. The slot after the last one is scratch: padding writes there, so that what is
padding leaves no trace in any request's KV. Contents start as noise, never zeros: kernels run faster on zeros.
Not here: which tokens the rows hold (realrun.kernels.device_passes), how they are attended to
(realrun.model.attention).

Invariant: positions at or beyond a row's length are garbage that no query sees before it is overwritten.
"""

from __future__ import annotations

import torch

from realrun.model.memory import check_fits

LAYOUT = "slot-token-head"
"""Order of the dimensions within one layer; a part of the key of a cost table."""


class SlottedKv:
    """Keys and values of one model: [layers, slots + 1, max_tokens, kv_heads, head_dim]."""

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        max_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        self.slots, self.kv_heads, self.max_tokens, self.head_dim = slots, kv_heads, max_tokens, head_dim
        self.num_bytes = 2 * layers * (slots + 1) * kv_heads * max_tokens * head_dim * dtype.itemsize
        check_fits(self.num_bytes, f"KV of {slots} slots of {max_tokens} tokens", device)
        generator = torch.Generator(device).manual_seed(seed)
        shape = (layers, slots + 1, max_tokens, kv_heads, head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
        self.values = torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
        self.lengths = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        """Tokens in KV [slots + 1], on the device; the scratch slot's stays 0."""
        self._layers = [(self.keys[index], self.values[index]) for index in range(layers)]

    @property
    def scratch(self) -> int:
        return self.slots

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer as stored, [slots + 1, max_tokens, kv_heads, head_dim]."""
        return self._layers[index]

    def write(
        self, layer: int, slots: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store keys and values [tokens, kv_heads, head_dim] at slots and positions [tokens]; lengths stay."""
        stored_keys, stored_values = self._layers[layer]
        stored_keys[slots, positions] = keys
        stored_values[slots, positions] = values

    def set_lengths(self, slots: torch.Tensor, lengths: torch.Tensor) -> None:
        """Commit or roll back: row `slots[i]` now holds `lengths[i]` tokens. The scratch slot's length stays 0."""
        self.lengths[slots] = lengths.masked_fill(slots == self.scratch, 0)
