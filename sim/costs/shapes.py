"""Dimensions of decoder models, and what follows from them: parameters, weight bytes, KV bytes.

The rule is a gated-MLP transformer with grouped-query attention (kv_heads == heads is multi-head); whatever differs is
a field of its own: an ungated MLP, experts, latent or linear attention, sliding windows, number formats. Biases and
norms are left out: Qwen2.5's QKV bias is under 0.01 % of its parameters. Dimensions are those of each model's
config.json.
Not here: how fast they run (sim.costs), reading a config.json (calibrate.catalogue.model_configs).
"""

from difflib import get_close_matches
from functools import cached_property
from math import prod
from pathlib import Path

import msgspec

from sim.bounds import Bounded, Count, Whole
from sim.costs.layer_kinds import (
    BLOCKS,
    CHOSEN,
    CHOSEN_GROUP,
    FULL,
    INDEXED,
    LATENT,
    LINEAR,
    NEAR,
    SHARED,
    WHOLE,
    WHOLE_GROUP,
    WINDOW,
    Compressed,
    Experts,
    Gemms,
    Indexer,
    Latent,
    LayerKind,
    Linear,
)

WEIGHT_BITS = {
    "bf16": 16.0,
    "fp8": 8.0,
    "fp8-block": 8.0,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
    "mxfp4-fp8": 4.25,
    "mxfp4-marlin": 4.25,
    "int4": 4.5,
}
"""Bits of one weight by number format, scales included: one of 8 bits for 16 (nvfp4) or 32 (mxfp4) weights, of 16 for
32 (int4); those of fp8 are under 0.1 %. They are multiplied with their own kind, but mxfp4 and int4 with bf16 and
mxfp4-fp8 with 8 bits; mxfp4-marlin is mxfp4 in Marlin kernels, which vLLM may choose on Hopper."""
FILLED_UP = {"mxfp4-marlin": (256, 128)}
"""Multiples that kernels of a format fill an expert's outer and inner width up to (vLLM, layers/quantization/mxfp4.py,
which does so after cutting experts)."""
KV_BITS = {"bf16": 16.0, "fp8": 8.0}


class Formats(Bounded, frozen=True, kw_only=True):
    """Number formats of a model's parts: keys of WEIGHT_BITS, and of KV_BITS for `kv`. Embedding, LM head and router
    stay at `dtype_bytes`."""

    projections: str = "bf16"
    """Attention's matrices."""
    mlp: str = "bf16"
    """Dense and shared MLPs."""
    experts: str = "bf16"
    kv: str = "bf16"

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            known = KV_BITS if field == "kv" else WEIGHT_BITS
            if getattr(self, field) not in known:
                raise ValueError(f"{field}={getattr(self, field)!r} must be one of {', '.join(known)}")


class ModelShape(Bounded, frozen=True, kw_only=True, dict=True):
    """A decoder. `intermediate` is the width of one half of the gated MLP, or of an MLP without a gate; `vocab` counts
    rows of the LM head."""

    name: str
    layers: Count
    hidden: Count
    intermediate: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocab: Count
    tied_embeddings: bool
    max_context: Count
    dtype_bytes: Count = 2
    qkv_inputs: Count = 1
    """Vectors of `hidden` that queries, keys and values read together: 2 in an EAGLE-3 head, embedding and feature."""
    fused_features: Whole = 0
    """Vectors of `hidden` of the target that the first pass of a draft projects to one: 3 in an EAGLE-3 head."""
    is_gated: bool = True
    """The MLP has a gate beside its up projection."""
    embedding_rows: Whole = 0
    """Rows of the input embedding where they are not the LM head's `vocab`."""
    experts: Experts | None = None
    latent: Latent | None = None
    indexer: Indexer | None = None
    """Latent attention's choice of the tokens that are read; None: all are."""
    linear: Linear | None = None
    """Linear attention of some layers; the others are as `heads` says."""
    compressed: Compressed | None = None
    """Compressed KV of all layers, among which the indexer chooses in some."""
    hyper_streams: Whole = 0
    """Residual streams that are mixed before and after every sublayer (mHC, arXiv 2512.24880); 0: one, not mixed."""
    mtp_layers: Whole | None = None
    """Layers that predict further tokens; null: the config does not say."""
    has_query_gate: bool = False
    """Queries are projected with a gate of their size for attention's output."""
    window: Whole = 0
    """Tokens that attention of `window_layers` layers looks back; the others see all."""
    window_layers: Whole = 0
    input_features: int = 0
    """Vectors of `hidden` that every pass projects to one before its layers: 2 in an MTP layer, embedding and state."""
    shares_head: bool = False
    """Embedding and LM head are the target's: no further weights."""
    projects_context: bool = False
    """A block drafter: context reaches its KV as projected features, never through its layers."""
    serial_slot_s: float = 0.0
    """Device time per drafted slot of a serial head behind the layers."""
    has_wide_qk_norm: bool = False
    """Queries and keys are normed over all heads together, which are on several devices: an all-reduce more."""
    formats: Formats | None = None
    """null: everything at `dtype_bytes`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.window_layers > self.layers or (self.window_layers > 0) != (self.window > 0):
            raise ValueError(f"window={self.window!r} goes with window_layers={self.window_layers!r} in 0..layers")
        if self.linear is not None and self.linear.layers >= self.layers - self.window_layers:
            raise ValueError(
                f"linear.layers={self.linear.layers} must be below layers={self.layers}: some attention sees all tokens"
            )
        if self.indexer is not None and self.indexer.shared_layers + self.indexer.full_layers >= self.layers:
            raise ValueError(
                f"indexer.shared_layers={self.indexer.shared_layers} and full_layers={self.indexer.full_layers} must "
                f"be below layers={self.layers}"
            )
        if (parts := self.compressed) is not None and parts.chosen_layers + parts.window_layers > self.layers:
            raise ValueError(f"compressed.chosen_layers={parts.chosen_layers} must be in 0..layers={self.layers}")
        if self.experts is not None and self.experts.dense_layers >= self.layers:
            raise ValueError(f"experts.dense_layers={self.experts.dense_layers} must be below layers={self.layers}")

    @property
    def is_plain(self) -> bool:
        """Dense, one kind of attention in all layers, one number format: what the compact law knows."""
        is_special = self.experts or self.formats or self.hyper_streams
        return not is_special and len(self.kinds()) == 1 and self.kinds()[0].name in (FULL, WINDOW)

    @property
    def linear_layers(self) -> int:
        return 0 if self.linear is None else self.linear.layers

    def kinds(self, tensor_parallel: int = 1) -> tuple[LayerKind, ...]:
        """The kinds of layers, as each of `tensor_parallel` devices has them."""
        known = self._kinds_by_degree
        if tensor_parallel not in known:
            made = self._compressed_kinds(tensor_parallel) if self.compressed else self._plain_kinds(tensor_parallel)
            known[tensor_parallel] = tuple(kind for kind in made if kind.layers)
        return known[tensor_parallel]

    @cached_property
    def _kinds_by_degree(self) -> dict[int, tuple[LayerKind, ...]]:
        return {}

    def _plain_kinds(self, degree: int) -> list[LayerKind]:
        """Linear attention, and latent or grouped keys and values: of all tokens, of a window, of what an indexer
        chooses."""
        gemms, left, kinds = self.attention_gemms(degree), self.layers - self.linear_layers, []
        if self.linear is not None:
            state_bytes = self.linear.state_bytes / self.linear.layers / degree
            kinds.append(
                LayerKind(LINEAR, self.linear.layers, self.linear.gemms(self.hidden, degree), 0.0, state_bytes)
            )
        numbers = 2 * max(1.0, self.kv_heads / degree) * self.head_dim
        if self.latent is not None:
            numbers = self.latent.kv_rank + self.latent.rope_dim
        token_bytes, indexer = numbers * self.kv_number_bytes, self.indexer
        if indexer is not None:
            indexed = gemms + self.indexer_gemms
            if self.latent is None:
                key_bytes = indexer.dim * self.kv_number_bytes
                chosen = LayerKind(BLOCKS, left - indexer.full_layers, indexed, token_bytes + key_bytes)
                return [*kinds, chosen, LayerKind(FULL, indexer.full_layers, gemms, token_bytes)]
            chosen = LayerKind(INDEXED, left - indexer.shared_layers, indexed, token_bytes + indexer.kv_bytes)
            return [*kinds, chosen, LayerKind(SHARED, indexer.shared_layers, gemms, token_bytes)]
        whole = FULL if self.latent is None else LATENT
        kinds.append(LayerKind(whole, left - self.window_layers, gemms, token_bytes))
        kinds.append(LayerKind(WINDOW, self.window_layers, gemms, token_bytes, self.window * token_bytes))
        return kinds

    def _compressed_kinds(self, degree: int) -> list[LayerKind]:
        """A layer keeps its window, entries of whole groups, and for the group that grows two sums in fp32 of each of
        its tokens; groups that are chosen overlap, which doubles them."""
        parts, indexer = self.compressed, self.indexer
        assert parts is not None
        assert indexer is not None
        gemms, entry = self.attention_gemms(degree), parts.entry_bytes(self.head_dim)
        near = float(parts.window * entry)
        choosing = ((4 * self.head_dim, self.hidden), *self.indexer_gemms, (4 * indexer.dim, self.hidden))
        kept = near + 16.0 * CHOSEN_GROUP * (self.head_dim + indexer.dim)
        chosen_bytes = (entry + indexer.kv_bytes) / CHOSEN_GROUP
        whole = self.layers - parts.chosen_layers - parts.window_layers
        all_kept = near + 8.0 * WHOLE_GROUP * self.head_dim
        return [
            LayerKind(CHOSEN, parts.chosen_layers, gemms + choosing, chosen_bytes, kept),
            LayerKind(WHOLE, whole, (*gemms, (2 * self.head_dim, self.hidden)), entry / WHOLE_GROUP, all_kept),
            LayerKind(NEAR, parts.window_layers, gemms, 0.0, near),
        ]

    def gemms(self, tensor_parallel: int = 1) -> Gemms:
        """(columns, depth) of a dense layer's weight matrices on one of `tensor_parallel` devices: attention's, then
        the MLP's."""
        return (*self.attention_gemms(tensor_parallel), *self.mlp_gemms(self.intermediate, tensor_parallel))

    def attention_gemms(self, tensor_parallel: int = 1) -> Gemms:
        """Matrices that all layers of softmax attention have. QKV and output; of latent attention both down-projections
        in one, the up-projection of queries, those of keys and values, output, a gate; of compressed KV both
        down-projections, queries, output in groups and out of them."""
        heads, latent, parts = self.heads // tensor_parallel, self.latent, self.compressed
        if parts is not None:
            groups = max(1, parts.output_groups // tensor_parallel) * parts.output_rank
            return (
                (parts.query_rank + self.head_dim, self.hidden),
                (heads * self.head_dim, parts.query_rank),
                (groups, self.heads * self.head_dim // parts.output_groups),
                (self.hidden, groups),
            )
        if latent is None:
            query, kv = heads * self.head_dim, max(1, self.kv_heads // tensor_parallel) * self.head_dim
            read = 2 * query if self.has_query_gate else query
            return ((read + 2 * kv, self.qkv_inputs * self.hidden), (self.hidden, query))
        query_dim = heads * (latent.nope_dim + latent.rope_dim)
        down = latent.kv_rank + latent.rope_dim + latent.query_rank
        up = (query_dim, latent.query_rank) if latent.query_rank else (query_dim, self.hidden)
        gemms = (
            (down, self.hidden),
            up,
            (heads * (latent.nope_dim + latent.value_dim), latent.kv_rank),
            (self.hidden, heads * latent.value_dim),
        )
        return (*gemms, (heads * latent.value_dim, self.hidden)) if self.has_query_gate else gemms

    @property
    def indexer_gemms(self) -> Gemms:
        """Queries, and a key and weights of the queries, whole on every device; compressed keys come from a compressor,
        blocks have no weights. None without an indexer."""
        indexer, latent = self.indexer, self.latent
        if indexer is None:
            return ()
        columns = indexer.heads * indexer.dim
        if self.compressed is not None:
            return (columns, self.compressed.query_rank), (indexer.heads, self.hidden)
        if latent is None:
            return ((columns + indexer.dim, self.hidden),)
        return (columns, latent.query_rank or self.hidden), (indexer.dim + indexer.heads, self.hidden)

    def mlp_gemms(self, intermediate: int, tensor_parallel: int = 1, hidden: int = 0) -> Gemms:
        """Gate and up together, down, of an MLP or expert so wide over vectors of `hidden`, 0 for the model's; without
        a gate, up and down."""
        wide, deep = intermediate // tensor_parallel, hidden or self.hidden
        return (((2 if self.is_gated else 1) * wide, deep), (deep, wide))

    @property
    def fusion_weights(self) -> int:
        """Parameters of the projections before the first layer; 0 where there are none."""
        return (self.fused_features + self.input_features) * self.hidden * self.hidden

    @property
    def layer_weights(self) -> int:
        """Parameters of one layer's matrices; with experts, the mean over all layers."""
        return round(sum(self._part_weights()) / self.layers)

    @cached_property
    def active_layer_weights(self) -> float:
        """Parameters that one token is multiplied with, mean over the layers: only the experts it activates count."""
        attention, mlp, experts = self._part_weights()
        share = self.experts.per_token / self.experts.num if self.experts is not None else 1.0
        return (attention + mlp + share * experts) / self.layers

    def _part_weights(self) -> tuple[int, int, int]:
        """Parameters of attention, of dense and shared MLPs with routers, and of experts, in all layers."""
        attention = sum(kind.layers * _size(kind.gemms) for kind in self.kinds())
        experts = self.experts
        if experts is None:
            return attention, self.layers * _size(self.mlp_gemms(self.intermediate)), 0
        sparse = self.layers - experts.dense_layers
        beside = self.hidden * (experts.num + 2 * experts.hidden) + _size(self.mlp_gemms(experts.shared_intermediate))
        mlp = experts.dense_layers * _size(self.mlp_gemms(self.intermediate)) + sparse * beside
        routed = _size(self.mlp_gemms(experts.intermediate, hidden=experts.hidden))
        return attention, mlp, sparse * experts.num * routed

    @property
    def head_weights(self) -> int:
        """Parameters outside the layers: embedding, the LM head where it is not the embedding, and the projection
        before the layers."""
        if self.shares_head:
            return self.fusion_weights
        rows = self.vocab + (0 if self.tied_embeddings else self.embedding_rows or self.vocab)
        return rows * self.hidden + self.fusion_weights

    @property
    def params(self) -> int:
        """Parameters of layers, embedding, LM head and the projection before them."""
        return sum(self._part_weights()) + self.head_weights

    @cached_property
    def weight_bytes(self) -> int:
        formats = self.formats
        if formats is None:
            return self.params * self.dtype_bytes
        parts = zip(self._part_weights(), (formats.projections, formats.mlp, formats.experts), strict=True)
        return round(sum(weights * WEIGHT_BITS[name] / 8.0 for weights, name in parts)) + self.head_bytes

    @cached_property
    def head_bytes(self) -> int:
        return self.head_weights * self.dtype_bytes

    @cached_property
    def expert_bytes(self) -> int:
        """Weights of all experts."""
        bits = 8.0 * self.dtype_bytes if self.formats is None else WEIGHT_BITS[self.formats.experts]
        return round(self._part_weights()[2] * bits / 8.0)

    @cached_property
    def loaded_expert_bytes(self) -> float:
        """`expert_bytes` as kernels of the format hold them in memory."""
        if self.experts is None or self.formats is None:
            return self.expert_bytes
        widths = self.experts.hidden or self.hidden, self.experts.intermediate
        multiples = FILLED_UP.get(self.formats.experts, (1, 1))
        return self.expert_bytes * prod(-(-w // n) * n / w for w, n in zip(widths, multiples, strict=True))

    def read_bytes(self, tokens: float) -> float:
        """Weights of the layers that a pass of `tokens` tokens reads: of experts, those that it activates."""
        total = float(self.weight_bytes - self.head_bytes)
        if self.experts is not None:
            total -= self.expert_bytes * (1.0 - self.experts.unique(tokens) / self.experts.num)
        return total

    @property
    def kv_number_bytes(self) -> float:
        return float(self.dtype_bytes) if self.formats is None else KV_BITS[self.formats.kv] / 8.0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that all layers keep of one token: where some have a window, those forget it (vLLM's hybrid KV pool),
        and what they hold inside the window, the same for any long request, is left out, as `sequence_bytes` are."""
        return kv_bytes_per_token(self, 1)

    @property
    def sequence_bytes(self) -> int:
        """Bytes that layers keep of a sequence, whatever its length: states of linear attention, windows, groups that
        grow; windows of layers that are all alike are KV."""
        return round(sum(kind.layers * kind.sequence_bytes for kind in self.kinds()) if len(self.kinds()) > 1 else 0)

    @cached_property
    def elementwise_bytes_per_token(self) -> int:
        """Traffic per layer and token of what is not a GEMM or attention: two norms that add the residual (8 hidden),
        rotary embedding (queries and keys read and written), activation (up and gate read, one written)."""
        rotary = 0 if self.compressed else 2 * (self.heads + self.kv_heads) * self.head_dim
        wide = self.intermediate
        if self.experts is not None:
            # Activation and routing of the experts are inside the experts' kernels.
            wide = self.experts.shared_intermediate
        return (8 * self.hidden + rotary + (3 if self.is_gated else 2) * wide) * self.dtype_bytes


def kv_bytes_per_token(shape: ModelShape, tensor_parallel: int) -> int:
    """KV of one token over all devices of a group; where it has more devices than KV heads, heads are replicated, and
    what has no heads always is."""
    kinds = shape.kinds(tensor_parallel)
    keeping = [kind for kind in kinds if not kind.is_within] or kinds
    return round(tensor_parallel * sum(kind.layers * kind.token_bytes for kind in keeping))


def rank_weight_bytes(shape: ModelShape, data_parallel: int) -> int:
    """Weights on the devices of one of `data_parallel` ranks: its part of the experts, and all of the rest."""
    return round(shape.weight_bytes - shape.expert_bytes + shape.loaded_expert_bytes / data_parallel)


def _size(gemms: tuple[tuple[int, int], ...]) -> int:
    return sum(columns * depth for columns, depth in gemms)


MODELS = msgspec.json.decode(Path(__file__).with_name("models.json").read_bytes(), type=dict[str, ModelShape])
"""Shapes by name. The tiny pair is no public model: random weights in fp32, small enough to replay on any CPU."""


def model(name: str) -> ModelShape:
    """The shape called `name`; raises ValueError with the nearest name."""
    shape = MODELS.get(name)
    if shape is None:
        nearest = get_close_matches(name, MODELS, n=1, cutoff=0.4)
        hint = f". Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"unknown model {name!r}{hint or '.'} Choose from {', '.join(MODELS)}")
    return shape
