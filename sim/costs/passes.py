"""One pass of one model on one GPU: what every form of kernel costs shares.

A pass = the body over all its tokens together (padded to a CUDA-graph size), attention by regime, the LM head over the
rows that sample. Everything that depends on an integer count alone is computed once and kept.
Not here: the forms (sim.costs.forms), host time and draft works of many passes (work_costs).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from sim.costs.compact_kernels import AllReduce, Elementwise, Head, Measured
from sim.costs.extrapolation import BY_ROWS
from sim.costs.layer_kinds import LINEAR, WINDOW
from sim.costs.profile import Gpu, Profile
from sim.costs.shapes import ModelShape
from sim.interface.work import TARGET, Chunk, Model, Work

LOGIT_BYTES = 4
"""The sampler works on fp32 logits."""
HEAD_KERNELS = 6
"""Kernels outside the layers: embedding, last norm, LM head, sampler."""


class PassUse(NamedTuple):
    """Work of a pass on one device."""

    flops: float
    num_bytes: float


Excess = tuple[str, int, int]
"""A bound's name, the size of a work there, and the largest one measured, which is less."""
HISTORY = 4
"""Place of histories among the bounds."""


Seconds = dict[int, float]
"""Seconds by tokens or rows."""


class RowPart(ABC):
    """A pass of rows without chunks, all but its context."""

    launch_s: float
    max_context_tokens: int
    """Context of all rows together up to which it was measured."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[float, ...]:
        """All that `device_s` goes by, as the compiled core reads it."""

    @abstractmethod
    def device_s(self, kv_tokens: int) -> float:
        """The pass where its rows read `kv_tokens` tokens of KV in all."""

    @abstractmethod
    def later_s(self, before_s: float, kv_tokens: int, rows: int, count: int) -> float:
        """`before_s` and `count` such passes, each of which reads `rows` more tokens than the one before it."""


class ModelPasses(ABC):
    """Passes of one model. Times are seconds per pass on one device of the tensor-parallel group."""

    compute_roof: float
    """FLOP/s that long GEMMs of this model reach."""
    bandwidth_roof: float
    """Bytes/s at which its weights stream."""
    bounds: tuple[float, ...]
    """Largest measured tokens, head rows, rows, chunk, history and queries of a row; inf where any number is."""
    history_name = BY_ROWS
    """Name of the size that bounds histories of chunks."""
    extra_s: float = 0.0
    """Device time of each pass beyond its kernels."""
    phase_s: float = 0.0
    """Device time of a work of rows beyond its passes, however many they are."""
    has_row_parts: bool = True
    """`row_part` gives one; False: a pass is priced by the sum of its parts."""

    def __init__(self, profile: Profile, model: Model, graph_sizes: Sequence[int]) -> None:
        """The passes of target or draft, with CUDA graphs of `graph_sizes` tokens."""
        shape = profile.target if model is TARGET else profile.draft
        assert shape is not None
        self._gpu = profile.gpu
        self._shape = shape
        self._tensor_parallel = profile.tensor_parallel
        self._head_size = shape.heads * shape.head_dim / profile.tensor_parallel
        self._kv_heads = max(1, shape.kv_heads // profile.tensor_parallel)
        self.kv_bytes = layer_kv_bytes(shape, profile.tensor_parallel)
        """Bytes of KV of one token in one layer on one device."""
        self.layers = shape.layers
        self.projects_context = shape.projects_context
        self.reads_features = shape.fused_features > 0 and not shape.projects_context
        self.max_row_tokens = shape.window if shape.window_layers == shape.layers else 0
        """KV that a row reads at most, where every layer has a window; else 0."""
        self.has_experts = shape.experts is not None
        self.num_kernels = shape.layers * profile.host.kernels_per_layer + HEAD_KERNELS
        self.row_parts: dict[tuple[int, int, int], RowPart] = {}
        """Kept by (rows, row tokens, head rows)."""
        self._padded = _padding(graph_sizes)
        self._body: Seconds = {}
        self._head: Seconds = {}
        self._fusion: Seconds = {}
        self._projected: Seconds = {}

    @abstractmethod
    def layer_s(self, tokens: int) -> float:
        """One layer over exactly `tokens` tokens, all but its attention."""

    @abstractmethod
    def fused_s(self, tokens: int) -> float:
        """The projection of the target's features before the first layer."""

    def keys_s(self, tokens: int) -> float:
        """Keys and values of `tokens` features in every layer, by their share of the layers' matrices."""
        shape = self._shape
        weights = 2 * shape.kv_heads * shape.head_dim * shape.hidden
        return self.body_s(tokens) * weights / shape.layer_weights

    def slots_s(self, work: Work) -> float:
        """Time of a block drafter beside its pass: context projected into its KV, the serial head slot by slot."""
        tokens = work.projected_tokens
        known = self._projected.get(tokens)
        if known is None:
            known = self._projected[tokens] = self.fused_s(tokens) + self.keys_s(tokens) if tokens else 0.0
        return known + (work.head_rows // work.rows * self._shape.serial_slot_s if work.rows else 0.0)

    @abstractmethod
    def logits_s(self, rows: int) -> float:
        """LM head and sampler over `rows` token positions, at least one."""

    @abstractmethod
    def rows_s(self, rows: int, row_tokens: int, kv_tokens: int, *, beside_chunks: bool) -> float:
        """One layer's attention of `rows` rows with `row_tokens` queries in all, which read `kv_tokens` tokens of KV in
        all, these included; `beside_chunks` where chunks of prompts are in the same kernels."""

    def row_part(self, rows: int, row_tokens: int, head_rows: int, launch_s: float) -> RowPart:
        """A pass of `rows` decode or verify rows, by context."""
        raise NotImplementedError

    def shared_s(self, tokens: int, group_tokens: int) -> float:
        """Seconds added to a pass of `tokens` tokens on this rank where all ranks have `group_tokens`."""
        return 0.0

    @abstractmethod
    def chunks_attention_s(self, chunks: Sequence[Chunk]) -> float:
        """One layer's prefill attention over `chunks`, each causal, after its history."""

    def max_row_context_tokens(self, rows: int) -> int:
        """The longest context that was measured of each of `rows` rows."""
        return int(self.bounds[HISTORY])

    def beyond(self, work: Work) -> list[Excess]:
        """Every size of `work` that is larger than anything measured."""
        rows, tokens, longest_chunk, longest_history, queries, context_tokens = work.rows, work.row_tokens, 0, 0, 0, 0
        for new_tokens, history_tokens in work.chunks:
            tokens += new_tokens
            longest_chunk, longest_history = max(longest_chunk, new_tokens), max(longest_history, history_tokens)
        if rows:
            queries, context_tokens = -(-work.row_tokens // rows), work.context_tokens // rows
        names = "tokens", "head_rows", "rows", "chunk_tokens", self.history_name, "queries"
        sizes = tokens, work.head_rows, rows, longest_chunk, longest_history, queries
        found = [
            (name, got, int(most)) for name, got, most in zip(names, sizes, self.bounds, strict=True) if got > most
        ]
        if rows and context_tokens > (longest := self.max_row_context_tokens(rows)):
            found.append((BY_ROWS, context_tokens, longest))
        return found

    def padded_tokens(self, tokens: int) -> int:
        """The token count that runs: the next captured size, or `tokens` where no graph is."""
        return self._padded[tokens] if tokens < len(self._padded) else tokens

    def body_s(self, tokens: int) -> float:
        """All layers over exactly `tokens` tokens, attention left out."""
        known = self._body.get(tokens)
        if known is None:
            known = self._body[tokens] = self.layers * self.layer_s(tokens)
        return known

    def padded_body_s(self, tokens: int, rows: int, row_tokens: int) -> float:
        """All layers over `tokens` tokens as they run, attention left out; `row_tokens` of them are of `rows` rows.
        Rows of several tokens activate fewer experts than so many unrelated tokens, by which `layer_s` goes."""
        tokens = self.padded_tokens(tokens)
        experts = self._shape.experts
        if experts is None or row_tokens == rows:
            return self.body_s(tokens)
        most = experts.saturating_tokens
        unrelated = tokens - row_tokens + round(experts.unrelated(rows, row_tokens))
        return self.body_s(tokens) - self.body_s(min(tokens, most)) + self.body_s(min(unrelated, most))

    def fusion_s(self, tokens: int) -> float:
        """Time of the first pass of a draft before its layers; nothing for a model that reads no features."""
        known = self._fusion.get(tokens)
        if known is None:
            known = self._fusion[tokens] = self.fused_s(tokens) if self.reads_features else 0.0
        return known

    def head_s(self, rows: int) -> float:
        """LM head and sampler over `rows` token positions; nothing for none."""
        known = self._head.get(rows)
        if known is None:
            known = self._head[rows] = self.logits_s(rows) if rows else 0.0
        return known

    def pass_s(self, rows: int, row_tokens: int, context_tokens: int, chunks: Sequence[Chunk], head_rows: int) -> float:
        """Any pass; rows beside chunks are in the mixed regime, in which FlashAttention-2 slows decode rows down."""
        total_tokens = row_tokens
        attention_s = 0.0
        if chunks:
            for chunk in chunks:
                total_tokens += chunk.new_tokens
            attention_s = self.chunks_attention_s(chunks)
        if rows:
            if self.max_row_tokens:
                context_tokens = min(context_tokens, rows * self.max_row_tokens)
            attention_s += self.rows_s(rows, row_tokens, context_tokens + row_tokens, beside_chunks=bool(chunks))
        if total_tokens == 0:
            return self.head_s(head_rows)
        body_s = self.padded_body_s(total_tokens, rows, row_tokens)
        return body_s + self.layers * attention_s + self.head_s(head_rows)

    def use(
        self, rows: int, row_tokens: int, context_tokens: float, chunks: Sequence[Chunk], head_rows: int
    ) -> PassUse:
        """FLOPs and bytes of a pass of this model (`pass_use`)."""
        return pass_use(self._shape, self._tensor_parallel, rows, row_tokens, context_tokens, chunks, head_rows)


def pass_use(
    shape: ModelShape,
    tensor_parallel: int,
    rows: int,
    row_tokens: int,
    context_tokens: float,
    chunks: Sequence[Chunk],
    head_rows: int,
) -> PassUse:
    """Useful FLOPs and least bytes of a pass: padding left out, weights and KV read once, of windows what they hold."""
    share, head_size = 1.0 / tensor_parallel, shape.heads * shape.head_dim / tensor_parallel
    tokens = row_tokens + sum([chunk.new_tokens for chunk in chunks])
    head_weights = shape.vocab * shape.hidden * share
    flops = 2.0 * tokens * shape.layers * shape.active_layer_weights * share + 2.0 * head_rows * head_weights
    num_bytes = head_weights * shape.dtype_bytes if head_rows else 0.0
    if tokens:
        num_bytes += shape.read_bytes(tokens) * share
    for kind in shape.kinds(tensor_parallel):
        most = shape.window if kind.name == WINDOW else inf
        kv_tokens = min(context_tokens, rows * most) + row_tokens if rows else 0.0
        pairs = row_tokens * (kv_tokens / rows) if rows else 0.0
        for new, history in chunks:
            kv_tokens += new + min(history, most)
            pairs += new * min(history + 0.5 * new, most)
        num_bytes += kind.layers * kind.token_bytes * kv_tokens
        if not kind.is_module and kind.name != LINEAR:
            flops += 4.0 * kind.layers * head_size * pairs
    return PassUse(flops, num_bytes + tokens * shape.layers * shape.elementwise_bytes_per_token * share)


def layer_kv_bytes(shape: ModelShape, tensor_parallel: int) -> float:
    """KV of one token in one layer on one device, mean over the layers, of which those of linear attention have none; a
    device has at least one KV head, or the whole of what has no heads."""
    return sum(kind.layers * kind.token_bytes for kind in shape.kinds(tensor_parallel)) / shape.layers


def bounds_of(most: Measured) -> tuple[float, ...]:
    """`ModelPasses.bounds` where the context of rows bounds histories, too."""
    return most.tokens, inf, most.rows, most.chunk_tokens, most.row_context_tokens, inf


def layer_rest_s(
    constants: Elementwise, reduce: AllReduce | None, gpu: Gpu, shape: ModelShape, tensor_parallel: int, tokens: int
) -> float:
    """One layer's elementwise kernels and all-reduces."""
    moved = tokens * shape.elementwise_bytes_per_token / tensor_parallel
    total = constants.kernels_per_layer * constants.kernel_s
    total += moved / (constants.bandwidth_share * gpu.bandwidth_bytes_per_s)
    if tensor_parallel > 1 and reduce is not None:
        message_bytes = tokens * shape.hidden * shape.dtype_bytes
        total += 2.0 * (reduce.fixed_s + message_bytes / reduce.bytes_per_s)
    return total


def sampler_s(constants: Head, gpu: Gpu, shape: ModelShape, rows: int) -> float:
    """The sampler over the logits of `rows` token positions."""
    logit_bytes = float(rows * shape.vocab * LOGIT_BYTES)
    return constants.sampler_s + constants.sampler_passes * logit_bytes / gpu.bandwidth_bytes_per_s


def _padding(graph_sizes: Sequence[int]) -> list[int]:
    """[tokens] -> the least of the rising `graph_sizes` that holds them."""
    padded = [0]
    for size in graph_sizes:
        padded.extend([size] * (size - len(padded) + 1))
    return padded
