"""Dimensions of decoder models, and what follows from them: parameters, weight bytes, KV bytes.

The rule is a gated-MLP transformer with grouped-query attention (kv_heads == heads is multi-head); whatever differs is
a field of its own: an ungated MLP, experts, latent or linear attention, sliding windows, number formats. Biases and
norms are left out: Qwen2.5's QKV bias is under 0.01 % of its parameters. Dimensions are those of each model's
config.json.
Not here: how fast they run (sim.costs), reading a config.json (calibrate.catalogue.model_configs).
"""

from difflib import get_close_matches
from functools import cached_property
from math import ceil, log

import msgspec

from sim.bounds import Bounded, Count, Whole

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


FURTHER_SHARE = 0.6
"""Share of the experts that a token of another sequence activates anew which a further token of the same sequence does:
its router chooses alike. Verify passes are reported to read 1.3, 3.2 and 6.1 times the experts with 1, 4 and 8 drafted
tokens; unrelated tokens would read 2.0, 4.7 and 8.0 times, and this share gives 1.6, 3.3 and 5.4."""
SATURATED_SHARE = 0.95


class Experts(Bounded, frozen=True, kw_only=True):
    """The experts of every layer beyond the first `dense_layers`: a token goes through `per_token` of `num`, each as
    wide as `intermediate`, and through a shared MLP of `shared_intermediate`, where there is one."""

    num: Count
    per_token: Count
    intermediate: Count
    shared_intermediate: Whole = 0
    dense_layers: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_token > self.num:
            raise ValueError(f"per_token={self.per_token!r} must be in 1..num={self.num}")

    def unique(self, tokens: float) -> float:
        """Experts that `tokens` tokens activate, expected, if each draws its experts uniformly and independently:
        num x (1 - (1 - per_token / num)^tokens). Real routers are skewed: kernel tables have the skew in their times.

        >>> round(Experts(num=128, per_token=4, intermediate=2880).unique(8), 1)
        28.7
        """
        return float(self.num * (1.0 - (1.0 - self.per_token / self.num) ** tokens))

    def unrelated(self, rows: int, row_tokens: int) -> float:
        """Tokens of as many sequences that activate as many experts as `row_tokens` of `rows` sequences.

        >>> Experts(num=128, per_token=4, intermediate=2880).unrelated(4, 16)
        11.2
        """
        return rows + FURTHER_SHARE * (row_tokens - rows)

    @property
    def saturating_tokens(self) -> int:
        """Unrelated tokens that activate SATURATED_SHARE of the experts; more of them read hardly any more.

        >>> Experts(num=128, per_token=4, intermediate=2880).saturating_tokens
        95
        """
        if self.per_token == self.num:
            return 1
        return ceil(log(1.0 - SATURATED_SHARE) / log(1.0 - self.per_token / self.num))


class Latent(Bounded, frozen=True, kw_only=True):
    """Latent attention (MLA, DeepSeek-V2, arXiv 2405.04434): queries and keys go through vectors of these ranks, and a
    token's KV is one vector of kv_rank + rope_dim for all heads together."""

    query_rank: int
    """0: queries are projected at once."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def absorbed_ratio(self) -> float:
        """Arithmetic of a decoding query per token of KV over a prompt's: it meets the latent vector itself,
        a prompt's with the keys and values that are made of it (DeepSeek-V2, arXiv 2405.04434, section 2.1).

        >>> Latent(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128).absorbed_ratio
        3.4
        """
        return (2 * self.kv_rank + self.rope_dim) / (self.nope_dim + self.rope_dim + self.value_dim)


class Indexer(Bounded, frozen=True, kw_only=True):
    """Sparse attention (DSA, arXiv 2512.02556): `heads` of `dim` score all tokens before, and attention is over the
    `tokens` best of them."""

    heads: int
    dim: int
    tokens: int
    shared_layers: Whole = 0
    """Layers without matrices and keys of an indexer: they read the tokens that a layer before them chose (GLM-5.2)."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token in one layer: its key in 8 bits, with one scale in fp32."""
        return self.dim + 4


class Linear(Bounded, frozen=True, kw_only=True):
    """Gated delta-rule attention (arXiv 2412.06464) in so many of the layers: a sequence has a state of fixed size
    there and no KV."""

    layers: Count
    key_heads: Count
    key_dim: Count
    value_heads: Count
    value_dim: Count
    conv_width: Count = 4
    """Tokens of the short convolution over queries, keys and values."""

    def gemms(self, hidden: int, tensor_parallel: int = 1) -> tuple[tuple[int, int], ...]:
        """(columns, depth) on one device: queries, keys, values and output gate in one; decay and strength; output."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        columns = (2 * keys + 2 * values, 2 * self.value_heads)
        return (*((each // tensor_parallel, hidden) for each in columns), (hidden, values // tensor_parallel))

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence in all these layers: the state in fp32, the convolution's last tokens in bf16.

        >>> Linear(layers=2, key_heads=1, key_dim=4, value_heads=2, value_dim=4).state_bytes
        448
        """
        mixed = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        return self.layers * (4 * self.value_heads * self.key_dim * self.value_dim + 2 * (self.conv_width - 1) * mixed)


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
        if self.indexer is not None and self.latent is None:
            raise ValueError("indexer goes with latent attention alone")
        if self.linear is not None and self.linear.layers >= self.layers - self.window_layers:
            raise ValueError(
                f"linear.layers={self.linear.layers} must be below layers={self.layers}: some attention sees all tokens"
            )
        if self.indexer is not None and self.indexer.shared_layers >= self.layers:
            raise ValueError(f"indexer.shared_layers={self.indexer.shared_layers} must be below layers={self.layers}")
        if self.experts is not None and self.experts.dense_layers >= self.layers:
            raise ValueError(f"experts.dense_layers={self.experts.dense_layers} must be below layers={self.layers}")

    @property
    def is_plain(self) -> bool:
        """Dense, one kind of attention in all layers, one number format: what the compact law knows."""
        is_special = self.experts or self.latent or self.linear or self.formats
        return not is_special and self.window_layers in (0, self.layers)

    @property
    def linear_layers(self) -> int:
        return 0 if self.linear is None else self.linear.layers

    def gemms(self, tensor_parallel: int = 1) -> tuple[tuple[int, int], ...]:
        """(columns, depth) of a dense layer's weight matrices on one of `tensor_parallel` devices: attention's, then
        the MLP's."""
        return (*self.attention_gemms(tensor_parallel), *self.mlp_gemms(self.intermediate, tensor_parallel))

    def attention_gemms(self, tensor_parallel: int = 1) -> tuple[tuple[int, int], ...]:
        """QKV and output; of latent attention both down-projections in one, the up-projection of queries, those of keys
        and values, output; an indexer's queries, its key and weights, whole on every device."""
        heads, latent = self.heads // tensor_parallel, self.latent
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
        return (*gemms, *self.indexer_gemms)

    @property
    def indexer_gemms(self) -> tuple[tuple[int, int], ...]:
        """(columns, depth) of an indexer's matrices; none without one."""
        indexer, latent = self.indexer, self.latent
        if indexer is None or latent is None:
            return ()
        queries = (indexer.heads * indexer.dim, latent.query_rank or self.hidden)
        return (queries, (indexer.dim + indexer.heads, self.hidden))

    def mlp_gemms(self, intermediate: int, tensor_parallel: int = 1) -> tuple[tuple[int, int], ...]:
        """Gate and up together, down, of an MLP or expert so wide; without a gate, up and down."""
        wide = intermediate // tensor_parallel
        return (((2 if self.is_gated else 1) * wide, self.hidden), (self.hidden, wide))

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
        attention = (self.layers - self.linear_layers) * _size(self.attention_gemms())
        if self.indexer is not None:
            attention -= self.indexer.shared_layers * _size(self.indexer_gemms)
        if self.linear is not None:
            attention += self.linear.layers * _size(self.linear.gemms(self.hidden))
        experts = self.experts
        if experts is None:
            return attention, self.layers * _size(self.mlp_gemms(self.intermediate)), 0
        sparse = self.layers - experts.dense_layers
        mlp = experts.dense_layers * _size(self.mlp_gemms(self.intermediate))
        mlp += sparse * (_size(self.mlp_gemms(experts.shared_intermediate)) + self.hidden * experts.num)
        return attention, mlp, sparse * experts.num * _size(self.mlp_gemms(experts.intermediate))

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

    def read_bytes(self, tokens: float) -> float:
        """Weights of the layers that a pass of `tokens` tokens reads: of experts, those that it activates."""
        total = float(self.weight_bytes - self.head_bytes)
        if self.experts is not None:
            total -= self.expert_bytes * (1.0 - self.experts.unique(tokens) / self.experts.num)
        return total

    @property
    def layer_kv_bytes_per_token(self) -> float:
        """Keys and values of one token in one layer, mean over the layers that keep any."""
        numbers = 2 * self.kv_heads * self.head_dim
        if self.latent is not None:
            numbers = self.latent.kv_rank + self.latent.rope_dim
        index_bytes = 0.0
        if self.indexer is not None:
            index_bytes = self.indexer.kv_bytes * (1.0 - self.indexer.shared_layers / self.layers)
        return numbers * self.kv_number_bytes + index_bytes

    @property
    def kv_number_bytes(self) -> float:
        return float(self.dtype_bytes) if self.formats is None else KV_BITS[self.formats.kv] / 8.0

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in every layer that keeps them: where some layers have a window, those forget it
        (vLLM's hybrid KV pool), and what they hold inside the window, the same for any long request, is left out; so is
        the state of linear attention."""
        keeping = self.layers - self.window_layers - self.linear_layers or self.layers
        return round(keeping * self.layer_kv_bytes_per_token)

    @cached_property
    def elementwise_bytes_per_token(self) -> int:
        """Traffic per layer and token of what is not a GEMM or attention: two norms that add the residual (8 hidden),
        rotary embedding (queries and keys read and written), activation (up and gate read, one written)."""
        rotary = 2 * (self.heads + self.kv_heads) * self.head_dim
        wide = self.intermediate
        if self.experts is not None:
            # Activation and routing of the experts are inside the experts' kernels.
            wide = self.experts.shared_intermediate
        return (8 * self.hidden + rotary + (3 if self.is_gated else 2) * wide) * self.dtype_bytes


def kv_bytes_per_token(shape: ModelShape, tensor_parallel: int) -> int:
    """KV of one token over all devices of a group; where it has more devices than KV heads, heads are replicated, and a
    latent vector always is."""
    replicas = tensor_parallel if shape.latent is not None else max(1, tensor_parallel // shape.kv_heads)
    return shape.kv_bytes_per_token * replicas


def rank_weight_bytes(shape: ModelShape, data_parallel: int) -> int:
    """Weights on the devices of one of `data_parallel` ranks: its part of the experts, and all of the rest."""
    return round(shape.weight_bytes - shape.expert_bytes * (1.0 - 1.0 / data_parallel))


def _size(gemms: tuple[tuple[int, int], ...]) -> int:
    return sum(columns * depth for columns, depth in gemms)


def _shape(
    name: str,
    layers: int,
    hidden: int,
    intermediate: int,
    heads: tuple[int, int, int],
    vocab: int,
    max_context: int,
    *,
    tied: bool = False,
    dtype_bytes: int = 2,
    is_gated: bool = True,
    embedding_rows: int = 0,
) -> ModelShape:
    """One row of the table; `heads` is (heads, KV heads, head dimension)."""
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=heads[2],
        vocab=vocab,
        tied_embeddings=tied,
        max_context=max_context,
        dtype_bytes=dtype_bytes,
        is_gated=is_gated,
        embedding_rows=embedding_rows,
    )


MODELS = {
    shape.name: shape
    for shape in (
        _shape("tinyllama-1.1b", 22, 2048, 5632, (32, 4, 64), 32000, 2048),
        _shape("llama-68m", 2, 768, 3072, (12, 12, 64), 32000, 2048),
        _shape("llama-2-7b", 32, 4096, 11008, (32, 32, 128), 32000, 4096),
        _shape("codellama-34b", 48, 8192, 22016, (64, 8, 128), 32000, 16384),
        _shape("llama-3.2-1b", 16, 2048, 8192, (32, 8, 64), 128256, 131072, tied=True),
        _shape("llama-3.1-8b", 32, 4096, 14336, (32, 8, 128), 128256, 131072),
        _shape("qwen2.5-0.5b", 24, 896, 4864, (14, 2, 64), 151936, 32768, tied=True),
        _shape("qwen2.5-1.5b", 28, 1536, 8960, (12, 2, 128), 151936, 32768, tied=True),
        _shape("qwen2.5-7b", 28, 3584, 18944, (28, 4, 128), 152064, 32768),
        _shape("qwen3-32b", 64, 5120, 25600, (64, 8, 128), 151936, 40960),
        _shape("apertus-8b", 32, 4096, 21504, (32, 8, 128), 131072, 65536, is_gated=False, embedding_rows=266752),
        _shape("tiny-target", 4, 256, 688, (4, 4, 64), 1024, 2048, dtype_bytes=4),
        _shape("tiny-draft", 1, 128, 344, (2, 2, 64), 1024, 2048, dtype_bytes=4),
    )
}
"""Shapes by name. The tiny pair is no public model: random weights in fp32, small enough to replay on any CPU."""


def model(name: str) -> ModelShape:
    """The shape called `name`; raises ValueError with the nearest name."""
    shape = MODELS.get(name)
    if shape is None:
        nearest = get_close_matches(name, MODELS, n=1, cutoff=0.4)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"unknown model {name!r}{hint} (known: {', '.join(MODELS)})")
    return shape


EAGLE3 = "eagle3"
EAGLE3_VOCAB = 32000
"""Draft vocabulary of the published heads."""
EAGLE3_HEADS = {
    "apertus-8b": {"intermediate": 14336, "vocab": 131072},
    "gpt-oss-120b": {"intermediate": 17280, "vocab": 201088},
}
"""Target -> where its published head differs: Apertus 8B's (EAGLE-3.1) is gated and copies the target's LM head
(swiss-ai/apertus-speculative-decoding); that of gpt-oss-120b (nvidia/gpt-oss-120b-Eagle3) keeps the vocabulary."""


SPARSE_HEAD_WIDTH = 6
"""Width of the dense MLP of a head for a model with experts, over its hidden size; assumed: its layers say nothing."""


def eagle3_head(target: ModelShape) -> ModelShape:
    """The EAGLE-3 draft head of `target`: one decoder layer of its width that reads embedding and feature together.

    The feature is three of the target's hidden states, fused by a projection; the LM head is its own, over a smaller
    vocabulary; the embedding is the target's.

    Source: Li et al. 2025 (arXiv 2503.01840), and the published config of EAGLE3-LLaMA3.1-Instruct-8B.
    """
    head = ModelShape(
        name=EAGLE3,
        layers=1,
        hidden=target.hidden,
        intermediate=target.intermediate if target.experts is None else SPARSE_HEAD_WIDTH * target.hidden,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab=min(EAGLE3_VOCAB, target.vocab),
        tied_embeddings=True,
        max_context=target.max_context,
        dtype_bytes=target.dtype_bytes,
        qkv_inputs=2,
        fused_features=3,
    )
    return msgspec.structs.replace(head, **EAGLE3_HEADS.get(target.name, {}))


MTP, DSPARK = "mtp", "dspark"
DSPARK_LAYERS, DSPARK_FEATURES, DSPARK_WINDOW, DSPARK_SLOT_S = 5, 6, 2048, 40e-6


def mtp_layer(target: ModelShape) -> ModelShape:
    """The multi-token-prediction layer of `target`: one layer of its kind, experts and all, over embedding and hidden
    state projected to one; embedding and LM head are the target's. Run once per drafted token.

    Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2).
    """
    experts = target.experts
    return msgspec.structs.replace(
        target,
        name=MTP,
        layers=1,
        window_layers=0,
        window=0,
        linear=None,
        indexer=None if target.indexer is None else msgspec.structs.replace(target.indexer, shared_layers=0),
        experts=None if experts is None else msgspec.structs.replace(experts, dense_layers=0),
        input_features=2,
        shares_head=True,
    )


def dspark_drafter(target: ModelShape) -> ModelShape:
    """The DSpark drafter of `target`: five gated layers of its width, each over a sliding window, which fill all slots
    in one pass; six hidden states of the target, fused, are its context; a serial head goes through the slots.

    Source: the published drafter of Apertus-8B (swiss-ai/apertus-speculative-decoding); 40 us a slot as issue reports
    have it.
    """
    return ModelShape(
        name=DSPARK,
        layers=DSPARK_LAYERS,
        hidden=target.hidden,
        intermediate=target.intermediate,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab=target.vocab,
        tied_embeddings=True,
        max_context=target.max_context,
        dtype_bytes=target.dtype_bytes,
        fused_features=DSPARK_FEATURES,
        window=DSPARK_WINDOW,
        window_layers=DSPARK_LAYERS,
        shares_head=True,
        projects_context=True,
        serial_slot_s=DSPARK_SLOT_S,
    )


HEADS = {EAGLE3: eagle3_head, MTP: mtp_layer, DSPARK: dspark_drafter}
"""Drafters that belong to a target."""


def draft_model(name: str, target: ModelShape) -> ModelShape:
    """The shape called `name` as a draft for `target`; a name of HEADS is that target's head."""
    return HEADS[name](target) if name in HEADS else model(name)
