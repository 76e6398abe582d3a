"""The device's account of each slot's request: its tokens, how many are known, the key of its randomness.

It is the truth that passes read and write, so a pass may be issued before the result of the one before it is back.
Drafted tokens lie right behind the known ones until they are verified.
Not here: KV (realrun.model.kv), the host's account (realrun.kernels.host_slots), passes
(realrun.kernels.device_passes).
"""

from __future__ import annotations

import torch

from realrun.model import sampling


class Sequences:
    """Tokens, lengths and keys of all slots on the device, scratch slot last."""

    def __init__(
        self,
        *,
        slots: int,
        max_tokens: int,
        draft_tokens_max: int,
        vocab: int,
        wide: torch.dtype | None,
        device: object,
    ) -> None:
        """`wide` is the dtype of the kept draft distributions, None at temperature 0, which needs none."""
        self.scratch = slots
        self.tokens = torch.zeros(slots + 1, max_tokens + 1, dtype=torch.int64, device=device)
        self.lengths = torch.ones(slots + 1, dtype=torch.int64, device=device)
        """Known tokens [slots + 1]; the scratch slot's stays 1."""
        self.keys = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.draft_probabilities = (
            None
            if wide is None
            else torch.full((slots + 1, draft_tokens_max, vocab), 1.0 / vocab, dtype=wide, device=device)
        )
        """Distribution each drafted token came from [slots + 1, draft_tokens_max, vocab]."""
        self._last = max_tokens

    def admit(self, slot: int, prompt: torch.Tensor, key: int) -> None:
        """Put a prompt [tokens], pinned, into a slot. Not for slots with passes in flight."""
        self.tokens[slot, : len(prompt)].copy_(prompt, non_blocking=True)
        self.lengths[slot].fill_(len(prompt))
        self.keys[slot].fill_(key)

    def read(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Tokens at positions [rows, width] of slots [rows]."""
        return self.tokens[slots.unsqueeze(1), positions.clamp(max=self._last)]

    def put(self, slots: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Store one token per row; all [rows]."""
        self.tokens[slots, positions.clamp(max=self._last)] = tokens

    def grow(self, slots: torch.Tensor, lengths: torch.Tensor) -> None:
        """Rows now hold `lengths` [rows] known tokens."""
        self.lengths[slots] = lengths.masked_fill(slots == self.scratch, 1)

    def draws(self, slots: torch.Tensor, positions: torch.Tensor, draw: sampling.Draw) -> torch.Tensor:
        """Uniforms for output positions shaped [rows] or [rows, width]."""
        keys = self.keys[slots]
        return sampling.uniforms(keys if positions.dim() == 1 else keys.unsqueeze(1), positions, draw)
