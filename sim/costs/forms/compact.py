"""CompactPasses: the cost of a work from a profile's compact constants.

Regimes of attention: decode (every row one query), prefill chunk with history, verify and mixed passes (several queries
in a row, or rows beside chunks: KV streams once, `kv_slowdown` times slower, plus the further queries' compute). No
public table has the last, so profiles mark it as not validated.
Not here: the constants (compact_kernels), what all forms share (passes, work_costs), the file (profile).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from sim.costs.compact_kernels import BLOCK_QUERIES, REFERENCE_DEPTH, SMALL_TILES_UP_TO, Gemm
from sim.costs.passes import ModelPasses, RowPart, bounds_of, layer_rest_s, sampler_s
from sim.costs.profile import Gpu, Profile
from sim.interface.work import Chunk, Model


def gemm_s(c: Gemm, gpu: Gpu, tokens: int, columns: int, depth: int, dtype_bytes: float) -> float:
    """Seconds of one [tokens, depth] x [depth, columns] GEMM with weights that are not in cache. Tokens are charged as
    they are, rounded up to tiles of the kernel grid, and to waves of tiles."""
    if tokens <= SMALL_TILES_UP_TO:
        tiles = waves = float(ceil(tokens / c.small_tile_tokens) * c.small_tile_tokens)
    else:
        rows = ceil(tokens / c.tile_tokens)
        tiles = float(rows * c.tile_tokens)
        blocks = rows * ceil(columns / c.tile_columns)
        in_waves = ceil(blocks / c.multiprocessors) * c.multiprocessors
        waves = max(tiles, in_waves * c.tile_tokens * c.tile_columns / columns)
    charged = (1.0 - c.tile_share - c.wave_share) * tokens + c.tile_share * tiles + c.wave_share * waves
    compute = 2.0 * charged * columns * (depth + c.extra_depth) / (c.compute_share * gpu.peak_flops)
    compute *= 1.0 + c.long_kernel_change * compute / (compute + c.long_kernel_s)
    moved = dtype_bytes * (columns * depth + tokens * (columns + depth))
    memory = moved / (c.bandwidth_share * gpu.bandwidth_bytes_per_s)
    together: float = (compute**c.sharpness + memory**c.sharpness) ** (1.0 / c.sharpness)
    return together + c.fixed_s + c.depth_s * depth / REFERENCE_DEPTH


class CompactRows(RowPart):
    """Attention over kv_tokens of KV adds, for the whole pass,
    layers x (blocks_power + (kv_tokens x kv_token_s)^p)^(1/p) + kv_tokens x query_s."""

    def __init__(self, passes: CompactPasses, rows: int, row_tokens: int, head_rows: int, launch_s: float) -> None:
        self._power, self._root, self._layers = passes.sharpness, passes.inverse_sharpness, passes.layers
        body_s = passes.body_s(passes.padded_tokens(row_tokens))
        self._fixed_s = body_s + passes.head_s(head_rows) + passes.layers * passes.decode.fixed_s + passes.extra_s
        self._blocks_power = float((passes.row_head_s * rows) ** passes.sharpness)
        self._kv_token_s = passes.row_kv_token_s(row_tokens / rows, is_decode=row_tokens == rows)
        self._query_s = passes.layers * passes.row_queries_s(row_tokens, rows, 1)
        self.launch_s = launch_s
        self.max_context_tokens = rows * passes.kernels.measured.row_context_tokens

    @property
    def numbers(self) -> tuple[float, ...]:
        return self._fixed_s, self._query_s, self._blocks_power, self._kv_token_s

    def device_s(self, kv_tokens: int) -> float:
        together: float = (self._blocks_power + (kv_tokens * self._kv_token_s) ** self._power) ** self._root
        attention_s = self._layers * together
        return self._fixed_s + attention_s + kv_tokens * self._query_s

    def later_s(self, before_s: float, kv_tokens: int, rows: int, count: int) -> float:
        power, root, blocks_power, kv_token_s = self._power, self._root, self._blocks_power, self._kv_token_s
        before_s += count * self._fixed_s
        for _ in range(count):
            kv_tokens += rows
            before_s += self._layers * (blocks_power + (kv_tokens * kv_token_s) ** power) ** root
        return before_s


class CompactPasses(ModelPasses):
    """Passes of one model from compact constants."""

    def __init__(self, profile: Profile, model: Model, graph_sizes: Sequence[int]) -> None:
        super().__init__(profile, model, graph_sizes)
        shape = self._shape
        if not shape.is_plain:
            raise ValueError(f"{shape.name}: compact constants price plain dense decoders. Give a profile of points")
        kernels, gpu = profile.compact, profile.gpu
        self.kernels, self.bounds = kernels, bounds_of(kernels.measured)
        self._gemms = shape.gemms(profile.tensor_parallel)
        self._is_small_head = float(shape.head_dim < 128)
        is_multi_head = shape.heads == shape.kv_heads
        decode = kernels.multi_head_decode_attention if is_multi_head else kernels.decode_attention
        self.decode = decode
        self._verify = kernels.verify_attention
        self.compute_roof = kernels.gemm.compute_share * gpu.peak_flops
        self.bandwidth_roof = kernels.gemm.bandwidth_share * gpu.bandwidth_bytes_per_s
        self.sharpness = decode.sharpness
        self.inverse_sharpness = 1.0 / decode.sharpness
        streamed_s = self.kv_bytes / (decode.bandwidth_share * gpu.bandwidth_bytes_per_s)
        self.context_coefficient = max(streamed_s, decode.key_head_s * self._kv_heads)
        """Seconds per layer and token of context in a decode pass."""
        self._pair_s = 4.0 * self._head_size / (kernels.prefill_attention.compute_share * gpu.peak_flops)
        """Seconds per layer and pair of query and key, at the rate of prefill attention."""
        self.row_head_s = decode.row_head_s * self._kv_heads

    def layer_s(self, tokens: int) -> float:
        """The four GEMMs, elementwise kernels and all-reduces, and what a served GPU makes of them."""
        kernels = self.kernels
        rest_s = layer_rest_s(
            kernels.elementwise, kernels.all_reduce, self._gpu, self._shape, self._tensor_parallel, tokens
        )
        gemms_s = sum(self._gemm_s(tokens, columns, depth) for columns, depth in self._gemms)
        if self._shape.input_features:
            depth = self._shape.input_features * self._shape.hidden
            gemms_s += self._gemm_s(tokens, self._shape.hidden // self._tensor_parallel, depth) / self.layers
        return (gemms_s + rest_s) * kernels.body_ratio(tokens)

    def _gemm_s(self, tokens: int, columns: int, depth: int) -> float:
        return gemm_s(self.kernels.gemm, self._gpu, tokens, columns, depth, self._shape.dtype_bytes)

    def logits_s(self, rows: int) -> float:
        lm_head_s = self._gemm_s(rows, self._shape.vocab // self._tensor_parallel, self._shape.hidden)
        return lm_head_s + sampler_s(self.kernels.head, self._gpu, self._shape, rows)

    def fused_s(self, tokens: int) -> float:
        shape = self._shape
        return self._gemm_s(tokens, shape.hidden // self._tensor_parallel, shape.fused_features * shape.hidden)

    def keys_s(self, tokens: int) -> float:
        shape = self._shape
        columns = 2 * max(1, shape.kv_heads // self._tensor_parallel) * shape.head_dim
        return self.layers * self._gemm_s(tokens, columns, shape.hidden)

    def row_part(self, rows: int, row_tokens: int, head_rows: int, launch_s: float) -> RowPart:
        return CompactRows(self, rows, row_tokens, head_rows, launch_s)

    def rows_s(self, rows: int, row_tokens: int, kv_tokens: int, *, beside_chunks: bool) -> float:
        is_decode = row_tokens == rows and not beside_chunks
        blocks_s = self.row_head_s * rows
        memory_s = kv_tokens * self.row_kv_token_s(row_tokens / rows, is_decode=is_decode)
        together: float = (blocks_s**self.sharpness + memory_s**self.sharpness) ** self.inverse_sharpness
        attention_s = together + self.row_queries_s(row_tokens, rows, kv_tokens)
        return attention_s if beside_chunks else self.decode.fixed_s + attention_s

    def row_kv_token_s(self, queries: float, *, is_decode: bool) -> float:
        """Seconds per layer and token of KV of rows with a mean of `queries` each; verify unless `is_decode`."""
        if is_decode:
            return self.context_coefficient
        tile_s = self._verify.tile_kv_token_s(queries, self._head_size, self._gpu.peak_flops)
        return max(self.context_coefficient * self._verify.kv_slowdown, tile_s)

    def row_queries_s(self, row_tokens: int, rows: int, kv_tokens: float) -> float:
        """Compute time of verify rows beyond one query each, one layer, where no padded tile already holds them."""
        if self._verify.query_tile > 1:
            return 0.0
        return self._pair_s * (row_tokens - rows) * (kv_tokens / rows)

    def chunks_attention_s(self, chunks: Sequence[Chunk]) -> float:
        c, gpu = self.kernels.prefill_attention, self._gpu
        pairs, longest, new_tokens, history_tokens = 0.0, 0, 0, 0
        for tokens, history in chunks:
            padded = -(-tokens // BLOCK_QUERIES) * BLOCK_QUERIES
            queries = tokens + c.tile_share * (padded - tokens)
            pairs += queries * (history + 0.5 * queries + 0.5 * c.extra_keys)
            if tokens > longest:
                longest = tokens
            new_tokens += tokens
            history_tokens += history
        compute = 4.0 * self._head_size * pairs / (c.compute_share * gpu.peak_flops)
        compute *= 1.0 + c.small_head_change * self._is_small_head
        memory = new_tokens * self.kv_bytes / (c.kv_bandwidth_share * gpu.bandwidth_bytes_per_s)
        new_s = c.fixed_s + compute + memory + c.block_s * longest / BLOCK_QUERIES
        return new_s + history_tokens * self.context_coefficient

    # -- as slots (sim.costs.forms.slots)

    widths = (4, 4, 1)

    @property
    def constants(self) -> tuple[float, ...]:
        c, gpu = self.kernels.prefill_attention, self._gpu
        prefill = (4.0 * self._head_size, c.compute_share * gpu.peak_flops)
        memory = (self.kv_bytes, c.kv_bandwidth_share * gpu.bandwidth_bytes_per_s)
        small = 1.0 + c.small_head_change * self._is_small_head
        shape = (c.block_s, c.tile_share, 0.5 * c.extra_keys, self.context_coefficient)
        return c.fixed_s, self.sharpness, self.inverse_sharpness, *prefill, small, *memory, *shape, 0.0, 0.0

    def beside(self, rows: int, row_tokens: int) -> tuple[float, ...]:
        kv_token_s = self.row_kv_token_s(row_tokens / rows, is_decode=False)
        pairs_s = 0.0 if self._verify.query_tile > 1 else self._pair_s * (row_tokens - rows)
        return pairs_s, 0.0, float((self.row_head_s * rows) ** self.sharpness), kv_token_s

    def chunk(self, tokens: int) -> tuple[float, ...]:
        raise AssertionError("chunks are priced by their pairs")
