"""Device time of one pass of one model on one GPU, from compact constants.

A pass = the body over all its tokens together (padded to a CUDA-graph size), attention by regime, the LM head over the
rows that sample. Everything that depends on an integer count alone is computed once and kept.
Not here: host time, draft works of many passes, and the protocol (sim.costs.compact).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import msgspec

from sim.costs.kernels import (
    BLOCK_QUERIES,
    Prompts,
    charged_tokens,
    chunk_pairs,
    decode_attention_s,
    gemm_s,
    prefill_attention_s,
)
from sim.costs.profile import Profile
from sim.models import ModelShape
from sim.work import Chunk

LOGIT_BYTES = 4
"""The sampler works on fp32 logits."""
HEAD_KERNELS = 6
"""Kernels outside the layers: embedding, last norm, LM head, sampler."""


class PassUse(NamedTuple):
    """What a pass moves and computes on one device."""

    flops: float
    num_bytes: float


class RowPart(NamedTuple):
    """A pass of rows without chunks, all but its context. Attention over kv_tokens of KV adds, for the whole pass,
    layers x (blocks_power + (kv_tokens x kv_token_s)^p)^(1/p) + kv_tokens x query_s."""

    device_s: float
    blocks_power: float
    kv_token_s: float
    query_s: float
    launch_s: float
    most_context_tokens: int


class ModelPasses:
    """Passes of one model. Times are seconds per pass on one device of the tensor-parallel group."""

    def __init__(self, profile: Profile, shape: ModelShape, graph_sizes: Sequence[int]) -> None:
        kernels = profile.kernels
        tensor_parallel = profile.tensor_parallel
        self._kernels = kernels
        self._gpu = profile.gpu
        self._shape = shape
        self._gemms = shape.gemms(tensor_parallel)
        self._tensor_parallel = tensor_parallel
        self._is_small_head = float(shape.head_dim < 128)
        self._head_size = shape.heads * shape.head_dim / tensor_parallel
        self._kv_heads = max(1, shape.kv_heads // tensor_parallel)
        is_multi_head = shape.heads == shape.kv_heads
        decode = kernels.multi_head_decode_attention if is_multi_head else kernels.decode_attention
        self._decode = decode
        slowdown = kernels.verify_attention.kv_slowdown
        self._verify = msgspec.structs.replace(decode, bandwidth_share=decode.bandwidth_share / slowdown)
        self.kv_bytes = 2.0 * self._kv_heads * shape.head_dim * shape.dtype_bytes
        """Bytes of KV of one token in one layer on one device."""
        self.layers = shape.layers
        self.num_kernels = shape.layers * profile.host.kernels_per_layer + HEAD_KERNELS
        self.sharpness = decode.sharpness
        self.inverse_sharpness = 1.0 / decode.sharpness
        self.context_coefficient = self.kv_bytes / (decode.bandwidth_share * profile.gpu.bandwidth_bytes_per_s)
        """Seconds per layer and token of context in a decode pass."""
        self._row_head_s = decode.row_head_s * self._kv_heads
        self._padded = _padding(graph_sizes)
        self.row_parts: dict[tuple[int, int, int], RowPart] = {}
        """Kept by (rows, row tokens, head rows)."""
        self._body: dict[int, float] = {}
        self._head: dict[int, float] = {}

    def padded_tokens(self, tokens: int) -> int:
        """The token count that runs: the next captured size, or `tokens` where no graph is."""
        return self._padded[tokens] if tokens < len(self._padded) else tokens

    def body_s(self, tokens: int) -> float:
        """All layers' GEMMs, elementwise kernels and all-reduces over exactly `tokens` tokens."""
        known = self._body.get(tokens)
        if known is None:
            known = self._body[tokens] = self.layers * (self.layer_gemms_s(tokens) + self._layer_rest_s(tokens))
        return known

    def layer_gemms_s(self, tokens: int) -> float:
        """The four GEMMs of one layer."""
        return sum(self._gemm_s(tokens, columns, depth) for columns, depth in self._gemms)

    def _gemm_s(self, tokens: int, columns: int, depth: int) -> float:
        gemm, gpu = self._kernels.gemm, self._gpu
        charged = charged_tokens(gemm, tokens, columns)
        return gemm_s(gemm, gpu.peak_flops, gpu.bandwidth_bytes_per_s, charged, columns, depth, self._shape.dtype_bytes)

    def _layer_rest_s(self, tokens: int) -> float:
        constants = self._kernels.elementwise
        moved = tokens * self._shape.elementwise_bytes_per_token / self._tensor_parallel
        total = constants.kernels_per_layer * constants.kernel_s
        total += moved / (constants.bandwidth_share * self._gpu.bandwidth_bytes_per_s)
        reduce = self._kernels.all_reduce
        if self._tensor_parallel > 1 and reduce is not None:
            message_bytes = tokens * self._shape.hidden * self._shape.dtype_bytes
            total += 2.0 * (reduce.fixed_s + message_bytes / reduce.bytes_per_s)
        return total

    def head_s(self, rows: int) -> float:
        """LM head and sampler over `rows` token positions; nothing for none."""
        known = self._head.get(rows)
        if known is None:
            known = self._head[rows] = self.lm_head_s(rows) + self._sampler_s(rows) if rows else 0.0
        return known

    def lm_head_s(self, rows: int) -> float:
        return self._gemm_s(rows, self._shape.vocab // self._tensor_parallel, self._shape.hidden)

    def _sampler_s(self, rows: int) -> float:
        head = self._kernels.head
        return head.sampler_s + head.sampler_passes * self._logit_bytes(rows) / self._gpu.bandwidth_bytes_per_s

    def _logit_bytes(self, rows: int) -> float:
        return float(rows * self._shape.vocab * LOGIT_BYTES)

    def row_part(
        self, rows: int, row_tokens: int, head_rows: int, launch_s: float, most_context_tokens: int
    ) -> RowPart:
        """What a pass of `rows` decode or verify rows costs apart from its context."""
        is_decode = row_tokens == rows
        slowdown = 1.0 if is_decode else self._kernels.verify_attention.kv_slowdown
        return RowPart(
            device_s=self.body_s(self.padded_tokens(row_tokens))
            + self.head_s(head_rows)
            + self.layers * self._decode.fixed_s,
            blocks_power=float((self._row_head_s * rows) ** self.sharpness),
            kv_token_s=self.context_coefficient * slowdown,
            query_s=self.layers * self.row_queries_s(row_tokens, rows, 1),
            launch_s=launch_s,
            most_context_tokens=most_context_tokens,
        )

    def rows_attention_s(self, rows: int, kv_tokens: int, *, is_decode: bool) -> float:
        """One layer's attention of `rows` rows that read `kv_tokens` tokens of KV in all; verify unless `is_decode`."""
        return decode_attention_s(
            self._decode if is_decode else self._verify,
            self._gpu.bandwidth_bytes_per_s,
            rows * self._kv_heads,
            kv_tokens * self.kv_bytes,
        )

    def row_queries_s(self, row_tokens: int, rows: int, kv_tokens: float) -> float:
        """Compute time of verify rows beyond one query each, one layer, at the rate of prefill attention."""
        extra_queries = row_tokens - rows
        pairs = extra_queries * (kv_tokens / rows)
        flops = 4.0 * self._head_size * pairs
        return flops / (self._kernels.prefill_attention.compute_share * self._gpu.peak_flops)

    def chunks_attention_s(self, chunks: Sequence[Chunk]) -> float:
        """One layer's prefill attention over `chunks`, each causal, after its own history."""
        constants = self._kernels.prefill_attention
        pairs, longest, new_tokens, history_tokens = 0.0, 0, 0, 0
        for tokens, history in chunks:
            padded = ceil(tokens / BLOCK_QUERIES) * BLOCK_QUERIES
            pairs += chunk_pairs(constants, tokens, padded, history)
            longest = max(longest, tokens)
            new_tokens += tokens
            history_tokens += history
        prompts = Prompts(self._head_size, self._is_small_head, pairs, longest, new_tokens * self.kv_bytes)
        new_s = prefill_attention_s(constants, self._gpu.peak_flops, self._gpu.bandwidth_bytes_per_s, prompts)
        return new_s + history_tokens * self.context_coefficient

    def pass_s(self, rows: int, row_tokens: int, context_tokens: int, chunks: Sequence[Chunk], head_rows: int) -> float:
        """Any pass: the mixed regime of kernels, in which FlashAttention-2 slows decode rows down."""
        total_tokens = row_tokens
        attention_s = 0.0
        if chunks:
            total_tokens += sum(chunk.new_tokens for chunk in chunks)
            attention_s = self.chunks_attention_s(chunks)
        if rows:
            kv_tokens = context_tokens + row_tokens
            is_decode = row_tokens == rows and not chunks
            attention_s += self.rows_attention_s(rows, kv_tokens, is_decode=is_decode)
            if row_tokens > rows:
                attention_s += self.row_queries_s(row_tokens, rows, kv_tokens)
            if chunks:
                attention_s -= self._decode.fixed_s
        if total_tokens == 0:
            return self.head_s(head_rows)
        return self.body_s(self.padded_tokens(total_tokens)) + self.layers * attention_s + self.head_s(head_rows)

    def use(self, rows: int, row_tokens: int, context_tokens: int, chunks: Sequence[Chunk], head_rows: int) -> PassUse:
        """Useful FLOPs and least bytes of the pass: padding left out, weights and KV read once."""
        shape, share = self._shape, 1.0 / self._tensor_parallel
        tokens, kv_tokens = row_tokens, context_tokens + row_tokens
        pairs = row_tokens * (kv_tokens / rows) if rows else 0.0
        for new, history in chunks:
            tokens += new
            kv_tokens += new + history
            pairs += new * (history + 0.5 * new)
        weights = shape.layers * shape.layer_weights * share
        head_weights = shape.vocab * shape.hidden * share
        flops = 2.0 * tokens * weights + 2.0 * head_rows * head_weights
        flops += 4.0 * shape.layers * self._head_size * pairs
        moved = (weights if tokens else 0.0) + (head_weights if head_rows else 0.0)
        num_bytes = moved * shape.dtype_bytes + shape.layers * self.kv_bytes * kv_tokens
        return PassUse(flops, num_bytes + tokens * shape.layers * shape.elementwise_bytes_per_token * share)


def _padding(graph_sizes: Sequence[int]) -> list[int]:
    """[tokens] -> the least of the rising `graph_sizes` that holds them."""
    padded = [0]
    for size in graph_sizes:
        padded.extend([size] * (size - len(padded) + 1))
    return padded
