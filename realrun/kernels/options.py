"""What a pair of models runs with: sizes, attention, buckets, sampling. Checked once, at construction.

Not here: the models themselves (realrun.model.weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from realrun.kernels.passes import PassShape
from realrun.model.attention import CONTEXT_STEP, Attention
from realrun.model.kv import KvLayout
from sim.seam.work import Kind, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Raises ValueError on sizes that do not fit together."""

    slots: int
    """Requests in KV at once."""
    max_tokens: int
    """Tokens per slot, prompt, output and drafts in flight; a multiple of CONTEXT_STEP."""
    attention: Attention
    kv_layout: KvLayout = KvLayout.HEAD_MAJOR
    draft_tokens_max: int = 8
    temperature: float = 0.0
    """0 is greedy; above, the same for every request."""
    seed: int = 0
    """Of sampling, and of the noise in unwritten KV."""
    batch_buckets: tuple[int, ...] = ()
    """Numbers of decoding rows that passes are padded to; empty pads none."""
    context_buckets: tuple[int, ...] = ()
    """Contexts that decoding rows are padded to; empty pads to multiples of CONTEXT_STEP."""
    cuda_graphs: bool = False
    """Capture draft and verify passes at warm-up; needs both kinds of buckets, or every shape would be its own."""

    def __post_init__(self) -> None:
        for name in ("slots", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.max_tokens % CONTEXT_STEP:
            raise ValueError(f"max_tokens={self.max_tokens} must be a multiple of {CONTEXT_STEP}")
        if not 0 <= self.draft_tokens_max < self.max_tokens:
            raise ValueError(f"draft_tokens_max={self.draft_tokens_max} must be in 0..{self.max_tokens - 1}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature} must be 0 or above, and finite")
        for name in ("batch_buckets", "context_buckets"):
            buckets = getattr(self, name)
            if list(buckets) != sorted(set(buckets)) or any(bucket < 1 for bucket in buckets):
                raise ValueError(f"{name}={buckets} must be positive and ascending")
        if any(bucket % CONTEXT_STEP or bucket > self.max_tokens for bucket in self.context_buckets):
            raise ValueError(
                f"context_buckets={self.context_buckets} must be multiples of {CONTEXT_STEP} up to {self.max_tokens}"
            )
        if self.cuda_graphs and not (self.batch_buckets and self.context_buckets):
            raise ValueError("cuda_graphs=True needs batch_buckets and context_buckets")

    @property
    def most_rows(self) -> int:
        """Rows of the largest pass: decoding ones padded to the largest bucket, and prompts of all other slots."""
        return self.slots + max(self.batch_buckets, default=0)

    @property
    def is_gathering(self) -> bool:
        """Attention copies the rows' KV together before it reads it."""
        return self.attention is not Attention.FLASH_PAGED

    @property
    def implementation(self) -> str:
        """These options' part of a cost table's key."""
        launch = "graph" if self.cuda_graphs else "eager"
        sampling = "sampled" if self.temperature > 0 else "greedy"
        return (
            f"attention={self.attention.value};kv={self.kv_layout.value};packing=rectangles;"
            f"launch={launch};sampling={sampling}"
        )

    def padded_rows(self, num_rows: int) -> int:
        return _bucket("batch_buckets", self.batch_buckets, num_rows, num_rows) if num_rows else 0

    def padded_context(self, num_tokens: int) -> int:
        """Context that rows of up to `num_tokens` tokens are padded to."""
        stepped = -(-num_tokens // CONTEXT_STEP) * CONTEXT_STEP
        return _bucket("context_buckets", self.context_buckets, num_tokens, min(stepped, self.max_tokens))


def decoding_shapes(options: PairOptions, draft_lengths: Sequence[int], *, has_draft: bool) -> list[PassShape]:
    """Every draft and verify shape that the buckets allow for these draft lengths, largest first.

    Verify shapes of every width up to the longest draft are among them (rows may have shorter drafts), and drafts
    with and without a catch-up token. Largest first, so that the allocator's blocks serve the smaller ones too.
    """
    if not (options.batch_buckets and options.context_buckets):
        raise ValueError("decoding shapes can be listed with batch_buckets and context_buckets only")
    longest = max(draft_lengths, default=0) if has_draft else 0
    shapes = []
    for rows in reversed(options.batch_buckets):
        for context in reversed(options.context_buckets):
            for draft_tokens in sorted({length for length in draft_lengths if has_draft and length}, reverse=True):
                for width in (2, 1):
                    shapes.append(PassShape(Kind.DRAFT, Model.DRAFT, rows, width, context, draft_tokens))
            for width in range(longest + 1, 0, -1):
                shapes.append(PassShape(Kind.VERIFY, Model.TARGET, rows, width, context))
    return shapes


def _bucket(name: str, buckets: tuple[int, ...], wanted: int, without: int) -> int:
    if not buckets:
        return without
    for bucket in buckets:
        if bucket >= wanted:
            return bucket
    raise ValueError(f"{wanted} exceeds the largest of {name}={buckets}; add a larger one")
