"""Dimensions of public dense decoder models, and what follows from them: parameters, weight bytes, KV bytes.

All are transformers with grouped-query attention (kv_heads == heads is multi-head), their MLP gated unless they say so.
Biases and norms are left out: Qwen2.5's QKV bias is under 0.01 % of its parameters. Dimensions are those of each
model's published config.json.
Not here: how fast they run (sim.costs).
"""

from difflib import get_close_matches

import msgspec


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dense decoder. `intermediate` is the width of one half of the gated MLP, or of an MLP without a gate; `vocab`
    counts rows of the LM head."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool
    max_context: int
    dtype_bytes: int = 2
    qkv_inputs: int = 1
    """Vectors of `hidden` that queries, keys and values read together: 2 in an EAGLE-3 head, embedding and feature."""
    fused_features: int = 0
    """Vectors of `hidden` of the target that the first pass of a draft projects to one: 3 in an EAGLE-3 head."""
    is_gated: bool = True
    """The MLP has a gate beside its up projection."""
    embedding_rows: int = 0
    """Rows of the input embedding where they are not the LM head's `vocab`."""

    def __post_init__(self) -> None:
        for field in (
            "layers",
            "hidden",
            "intermediate",
            "heads",
            "kv_heads",
            "head_dim",
            "vocab",
            "max_context",
            "dtype_bytes",
            "qkv_inputs",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)!r} must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        for field in ("fused_features", "embedding_rows"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field}={getattr(self, field)!r} must not be negative")

    def gemms(self, tensor_parallel: int = 1) -> tuple[tuple[int, int], ...]:
        """(columns, depth) of one layer's four weight matrices on one of `tensor_parallel` devices: QKV, output, gate
        (where there is one) and up together, down."""
        query = self.heads * self.head_dim // tensor_parallel
        kv = max(1, self.kv_heads // tensor_parallel) * self.head_dim
        wide = self.intermediate // tensor_parallel
        up = (2 if self.is_gated else 1) * wide
        attended = self.qkv_inputs * self.hidden
        return ((query + 2 * kv, attended), (self.hidden, query), (up, self.hidden), (self.hidden, wide))

    @property
    def fusion_weights(self) -> int:
        """Parameters of the projection before the first layer; 0 where there is none."""
        return self.fused_features * self.hidden * self.hidden

    @property
    def layer_weights(self) -> int:
        """Parameters of one layer's matrices."""
        return sum(columns * depth for columns, depth in self.gemms())

    @property
    def params(self) -> int:
        """Parameters: layers, embedding, the LM head where it is not the embedding, and the projection before them."""
        rows = self.vocab + (0 if self.tied_embeddings else self.embedding_rows or self.vocab)
        matrices = rows * self.hidden
        return self.layers * self.layer_weights + matrices + self.fusion_weights

    @property
    def weight_bytes(self) -> int:
        return self.params * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def elementwise_bytes_per_token(self) -> int:
        """Traffic per layer and token of what is not a GEMM or attention: two norms that add the residual (8 hidden),
        rotary embedding (queries and keys read and written), activation (up and gate read, one written)."""
        rotary = 2 * (self.heads + self.kv_heads) * self.head_dim
        activation = (3 if self.is_gated else 2) * self.intermediate
        return (8 * self.hidden + rotary + activation) * self.dtype_bytes


def kv_bytes_per_token(shape: ModelShape, tensor_parallel: int) -> int:
    """KV of one token over all devices of a group; where it has more devices than KV heads, heads are replicated."""
    replicas = max(1, tensor_parallel // shape.kv_heads)
    return shape.kv_bytes_per_token * replicas


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
"""By name. The tiny pair is no public model: random weights in fp32, small enough to replay on any CPU."""


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
EAGLE3_HEADS = {"apertus-8b": {"intermediate": 14336, "vocab": 131072}}
"""Target -> where its published head differs: Apertus 8B's (EAGLE-3.1) is gated and copies the target's LM head
(swiss-ai/apertus-speculative-decoding)."""


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
        intermediate=target.intermediate,
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


def draft_model(name: str, target: ModelShape) -> ModelShape:
    """The shape called `name` as a draft for `target`; `eagle3` is that target's own head."""
    return eagle3_head(target) if name == EAGLE3 else model(name)
