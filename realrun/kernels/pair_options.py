"""Options of a pair of models: sizes and buckets.

Not here: the models themselves (realrun.model.weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from realrun.kernels.device_passes import PassShape
from sim.interface.work import Kind, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Sizes, and how passes are padded and captured."""

    slots: int
    """Requests in KV at once."""
    max_tokens: int
    """Tokens per slot, prompt, output and drafts in flight."""
    draft_tokens_max: int = 8
    seed: int = 0
    """Seed of the noise in unwritten KV."""
    batch_buckets: tuple[int, ...] = ()
    """Numbers of decoding rows that passes are padded to; empty pads none."""
    cuda_graphs: bool = False
    """Capture draft and verify passes at warm-up; needs buckets, or every number of rows would be its own."""

    @property
    def max_rows(self) -> int:
        """Rows of the largest pass: decoding ones padded to the largest bucket, and prompts of all other slots."""
        return self.slots + max(self.batch_buckets, default=0)

    def padded_rows(self, num_rows: int) -> int:
        if not self.batch_buckets or not num_rows:
            return num_rows
        return next(bucket for bucket in self.batch_buckets if bucket >= num_rows)


def doubling(most: int) -> tuple[int, ...]:
    """Buckets 1, 2, 4, ... and `most`."""
    return tuple(sorted({*(1 << power for power in range(most.bit_length()) if 1 << power < most), most}))


def decoding_shapes(options: PairOptions, draft_lengths: Sequence[int], *, has_draft: bool) -> list[PassShape]:
    """Every draft and verify shape that the buckets allow for these draft lengths, largest first.

    Verify shapes of every width up to the longest draft are among them (rows may have shorter drafts), and drafts
    with and without a catch-up token. Largest first, so that the allocator's blocks serve the smaller ones too.
    """
    longest = max(draft_lengths, default=0) if has_draft else 0
    shapes = []
    for rows in reversed(options.batch_buckets):
        for draft_tokens in sorted({length for length in draft_lengths if has_draft and length}, reverse=True):
            for width in (2, 1):
                shapes.append(PassShape(Kind.DRAFT, Model.DRAFT, rows, width, draft_tokens))
        for width in range(longest + 1, 0, -1):
            shapes.append(PassShape(Kind.VERIFY, Model.TARGET, rows, width))
    return shapes
