"""The compact form of kernel costs, and the linear one: a few physical constants per GPU, as a profile stores them.

Not here: what a pass is made of (sim.costs.forms), files (sim.costs.profile).
"""

from bisect import bisect_left
from math import ceil, inf, log
from typing import Annotated

from sim.bounds import LARGEST, Bounded, Bounds, Count, Factor, NotNegative, Positive, Seconds

REFERENCE_DEPTH = 4096
"""Depth (inner dimension) at which `depth_s` counts in full."""
BLOCK_QUERIES = 128
"""Queries that one thread block of a prefill attention kernel handles (FlashAttention-2 and 3)."""


class Gemm(Bounded, frozen=True, kw_only=True):
    """A weight GEMM of `tokens` rows: (compute^p + memory^p)^(1/p) + fixed. See `gemm_s`."""

    compute_share: Positive
    """Share of the peak FLOP/s that a long kernel reaches."""
    bandwidth_share: Positive
    """Share of the peak bandwidth at which weights and activations stream."""
    fixed_s: Seconds
    """Start and end of one kernel."""
    depth_s: Seconds
    """Serial loop over a depth of REFERENCE_DEPTH."""
    sharpness: Factor
    """p: how fully compute and memory overlap (infinite: max, 1: sum)."""
    extra_depth: NotNegative
    """Depth-equivalent of prologue and epilogue of the compute part."""
    tile_share: NotNegative
    """Share of the token count that is charged rounded up to the tile; the rest is charged as it is."""
    wave_share: NotNegative
    """Share that is charged rounded up to whole waves of tiles over the multiprocessors."""
    long_kernel_change: Annotated[float, Bounds(-1, LARGEST, is_open=True)]
    """Relative change of compute time in kernels much longer than `long_kernel_s`: power throttling if positive."""
    long_kernel_s: Seconds
    tile_tokens: Count
    small_tile_tokens: Count
    """Tile where the token count does not exceed SMALL_TILES_UP_TO."""
    tile_columns: Count
    multiprocessors: Count

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tile_share + self.wave_share > 1.0:
            raise ValueError(f"tile_share + wave_share = {self.tile_share + self.wave_share} must not exceed 1")


SMALL_TILES_UP_TO = 64
"""Token counts up to this run on small tiles."""


class DecodeAttention(Bounded, frozen=True, kw_only=True):
    """Attention with one query per row, KV write included: fixed + (blocks^p + KV bytes^p)^(1/p)."""

    fixed_s: Seconds
    row_head_s: Seconds
    """Time per row and KV head: thread blocks to schedule."""
    bandwidth_share: Positive
    """Share of the peak bandwidth at which KV streams."""
    sharpness: Factor
    key_head_s: Seconds = 0.0
    """Least time per key and KV head, however few bytes a small head has."""


class PrefillAttention(Bounded, frozen=True, kw_only=True):
    """Causal attention of whole prompts or chunks, KV write included."""

    fixed_s: Seconds
    compute_share: Positive
    extra_keys: NotNegative
    """Keys-equivalent that every query pays beside those it attends to: loads, softmax, epilogue."""
    tile_share: NotNegative
    """Share of the queries charged rounded up to BLOCK_QUERIES."""
    block_s: Seconds
    """Time per BLOCK_QUERIES of the longest chunk: the serial tail."""
    kv_bandwidth_share: Positive
    """Share of the peak bandwidth at which the chunk's KV is written and read: low, it is read many times."""
    small_head_change: NotNegative
    """Relative slowdown where the head dimension is below 128."""


class VerifyAttention(Bounded, frozen=True, kw_only=True):
    """Decode rows in a pass where some row has several queries, or that stands beside prefill chunks.

    KV streams once, `kv_slowdown` times slower, or the padded query tiles are computed, whichever takes longer.
    FlashAttention-3 packs the queries of a KV group and keeps 1.0 and 1. FlashAttention-2 loses packing and split-KV,
    and every head of every row computes a whole tile (docs/adr/008).
    """

    kv_slowdown: Factor
    query_tile: Count = 1
    """Queries that one thread block computes whether there are so many or not; 1 where none is wasted."""
    tile_compute_share: Positive = 0.73
    """Share of the peak FLOP/s in whole tiles: FlashAttention-2 on A100 (Dao 2023, arXiv 2307.08691)."""

    def tile_kv_token_s(self, queries: float, head_size: float, peak_flops: float) -> float:
        """Seconds per layer and token of KV for a row's padded tiles; `head_size` = query heads x dimension."""
        if self.query_tile == 1:
            return 0.0
        padded_queries = ceil(queries / self.query_tile) * self.query_tile
        return 4.0 * head_size * padded_queries / (self.tile_compute_share * peak_flops)


class Elementwise(Bounded, frozen=True, kw_only=True):
    """Norms, rotary embedding and activation of one layer: kernel_s x kernels + bytes / (bandwidth_share x peak)."""

    bandwidth_share: Positive
    kernel_s: Seconds
    kernels_per_layer: Count


class Head(Bounded, frozen=True, kw_only=True):
    """Kernels after the layers: the LM head is a GEMM over rows that sample; the sampler reads its fp32 logits."""

    sampler_s: Seconds
    """Fixed time of the sampler's kernels."""
    sampler_passes: NotNegative
    """Times that the sampler streams the logits."""


class AllReduce(Bounded, frozen=True, kw_only=True):
    """Tensor parallelism: two of these per layer, fixed_s + bytes / bytes_per_s."""

    fixed_s: Seconds
    bytes_per_s: Positive


class Measured(Bounded, frozen=True, kw_only=True):
    """The largest of everything that was measured; beyond it a cost is extrapolated."""

    tokens: Count
    rows: Count
    row_context_tokens: Count
    chunk_tokens: Count


class KernelsUnderLoad(Bounded, frozen=True, kw_only=True):
    """Layers of a pass on a GPU under load, over the sum of kernels that were timed one by one."""

    body_ratios: tuple[tuple[int, float], ...] = ()
    """(tokens, ratio): what the layers of a pass take, attention left out, over what the kernels say."""

    def __post_init__(self) -> None:
        tokens = [0, *(count for count, _ in self.body_ratios)]
        if tokens != sorted(set(tokens)) or not all(0.0 < ratio < inf for _, ratio in self.body_ratios):
            raise ValueError(f"body_ratios={self.body_ratios} must have rising tokens from 1 on and positive ratios")

    def body_ratio(self, tokens: int) -> float:
        """The ratio at `tokens`, between the counts of `body_ratios` on their logs; beyond them the nearest holds."""
        ratios = self.body_ratios
        if not ratios:
            return 1.0
        index = bisect_left(ratios, (tokens, 0.0))
        if index == 0 or index == len(ratios):
            return ratios[min(index, len(ratios) - 1)][1]
        (low, before), (high, after) = ratios[index - 1 : index + 1]
        share = log(tokens / low) / log(high / low)
        return before + share * (after - before)


class CompactKernels(KernelsUnderLoad, frozen=True, kw_only=True, tag_field="form", tag="compact"):
    """All constants of one GPU, engine and attention implementation."""

    gemm: Gemm
    decode_attention: DecodeAttention
    """Grouped queries."""
    multi_head_decode_attention: DecodeAttention
    """Models with a KV head for every query head."""
    prefill_attention: PrefillAttention
    verify_attention: VerifyAttention
    elementwise: Elementwise
    head: Head
    all_reduce: AllReduce | None
    attention_implementation: str
    kv_layout: str
    measured: Measured


class LinearPass(Bounded, frozen=True, kw_only=True):
    """One model's pass as a line: pass_s + token_s x tokens + row_s x rows that sample + kv_token_s x KV."""

    pass_s: Seconds
    token_s: Seconds = 0.0
    """Time per token through the body."""
    row_s: Seconds = 0.0
    """Time per token position that samples."""
    kv_token_s: Seconds = 0.0
    """Time per token of KV that attention reads."""
    launches: Count | None = None
    """Kernels that an eager pass launches; null = by the layers, as the other forms have it."""
    by_rows: tuple[tuple[int, float], ...] = ()
    """(rows, seconds) of passes of decode or verify rows alone, where they were seen: in place of `pass_s`, and of
    `token_s` for the rows' own tokens. Between two of them on a line; beyond the last as from the first to the last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = [0, *(count for count, _ in self.by_rows)]
        if rows != sorted(set(rows)) or not all(0.0 <= seconds < inf for _, seconds in self.by_rows):
            raise ValueError(f"by_rows={self.by_rows} must have rising rows from 1 on and seconds from 0 on")

    def seen_s(self, rows: int) -> float:
        """A pass of `rows` rows by `by_rows`, which has some.

        >>> line = LinearPass(pass_s=1.0, by_rows=((1, 1.0), (2, 1.5), (4, 1.9)))
        >>> [round(line.seen_s(rows), 2) for rows in (1, 3, 4, 7)]
        [1.0, 1.7, 1.9, 2.8]
        >>> LinearPass(pass_s=1.0, by_rows=((2, 1.5),)).seen_s(1)
        1.5
        """
        points = self.by_rows
        (first, first_s), (last, last_s) = points[0], points[-1]
        if rows >= last:
            return last_s + (rows - last) * max(0.0, last_s - first_s) / max(1, last - first)
        if rows <= first:
            return first_s
        index = bisect_left(points, (rows, 0.0))
        (low, before_s), (high, after_s) = points[index - 1 : index + 1]
        return before_s + (rows - low) * (after_s - before_s) / (high - low)


class LinearKernels(Bounded, frozen=True, kw_only=True, tag_field="form", tag="linear"):
    """Kernel costs of profiles for which only a few times of whole passes were published."""

    target: LinearPass
    draft: LinearPass | None
    attention_implementation: str
    kv_layout: str
    measured: Measured
