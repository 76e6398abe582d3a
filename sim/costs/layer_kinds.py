"""Parts of decoder layers that differ from grouped queries over all tokens and one MLP, and the kinds that they make.

A kind has the attention's matrices and what its layers keep: bytes of a token, and of a sequence whatever its length.
All that goes by layers (weights, KV, the times of attention) is a sum over kinds.
Not here: whole models (shapes), reading a config.json (calibrate.catalogue.model_configs).
"""

from __future__ import annotations

from math import ceil, log
from typing import NamedTuple

from sim.bounds import Bounded, Count, Whole

Gemms = tuple[tuple[int, int], ...]
"""(columns, depth) of weight matrices on one device."""


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
    hidden: Whole = 0
    """Numbers of a token inside the routed experts, between two projections (Kimi-K3); 0: the model's."""

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
    """Sparse attention: `heads` of `dim` score all tokens before, and attention is over the `tokens` best of them (DSA,
    arXiv 2512.02556; with compressed KV, over the best groups; without latent attention, over blocks of tokens)."""

    heads: int
    dim: int
    tokens: int
    shared_layers: Whole = 0
    """Layers without matrices and keys of an indexer: they read the tokens that a layer before them chose (GLM-5.2)."""
    full_layers: Whole = 0
    """Layers whose attention is over all tokens (MiniMax-M3)."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token in one layer: its key in 8 bits, with one scale in fp32."""
        return self.dim + 4


SCALED_TOGETHER = 64
"""Numbers of a compressed entry that share one scale of 8 bits."""


class Compressed(Bounded, frozen=True, kw_only=True):
    """Attention over compressed KV (DeepSeek-V4): one vector of a head's size, key and value at once, for all heads of
    `window` tokens, and one for each group of tokens before. Layers differ in the group: an indexer chooses among those
    of CHOSEN_GROUP tokens, all of those of WHOLE_GROUP are read; other layers have the window alone."""

    query_rank: Count
    rope_dim: Count
    output_groups: Count
    """Heads' outputs are projected in so many groups, each to `output_rank`."""
    output_rank: Count
    window: Count
    chosen_layers: Whole
    window_layers: Whole = 0

    def entry_bytes(self, dim: int) -> int:
        """Bytes of one vector: 8 bits a number and the scales, padded to even, 16 where positions are rotated in.
        Source: FlashMLA's 584 bytes for this model, in vLLM and SGLang; TensorRT-LLM has 512."""
        narrow = dim - self.rope_dim
        scales = narrow // SCALED_TOGETHER
        return narrow + 2 * self.rope_dim + scales + scales % 2


CHOSEN_GROUP, WHOLE_GROUP = 4, 128


class Linear(Bounded, frozen=True, kw_only=True):
    """Delta-rule attention, gated by head (arXiv 2412.06464) or by channel (Kimi, arXiv 2510.26692), in so many of the
    layers: a sequence has a state of fixed size there and no KV."""

    layers: Count
    key_heads: Count
    key_dim: Count
    value_heads: Count
    value_dim: Count
    conv_width: Count = 4
    """Tokens of the short convolution over queries, keys and values."""
    decay_rank: Whole = 0
    """Rank of the decay's projection to all channels; 0: a decay for each value head."""

    def gemms(self, hidden: int, tensor_parallel: int = 1) -> Gemms:
        """Queries, keys, values and output gate; decay and strength, whose down-projection every device has; output."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        mixed = ((2 * keys + 2 * values) // tensor_parallel, hidden)
        decay: Gemms = ((2 * self.value_heads // tensor_parallel, hidden),)
        if self.decay_rank:
            decay = (self.decay_rank + self.value_heads, hidden), (values // tensor_parallel, self.decay_rank)
        return mixed, *decay, (hidden, values // tensor_parallel)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence in all these layers: the state in fp32, the convolution's last tokens in bf16."""
        mixed = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        return self.layers * (4 * self.value_heads * self.key_dim * self.value_dim + 2 * (self.conv_width - 1) * mixed)


class LayerKind(NamedTuple):
    """So many layers alike, on one device of a group."""

    name: str
    layers: int
    gemms: Gemms
    """Attention's matrices."""
    token_bytes: float = 0.0
    """Bytes that a layer keeps of every token."""
    sequence_bytes: float = 0.0
    """Bytes that it keeps of a sequence beside: a state, or the tokens of a window."""

    @property
    def is_module(self) -> bool:
        """Attention is timed with its matrices."""
        return self.name in MODULES

    @property
    def is_within(self) -> bool:
        """Attention reads a bounded number of tokens before."""
        return self.name in (WINDOW, LINEAR)


FULL, WINDOW, LATENT, LINEAR = "full", "window", "latent", "linear"
INDEXED, SHARED, CHOSEN, WHOLE, NEAR, BLOCKS = "dsa", "dsa_skip_indexer", "dsv4_csa", "dsv4_hca", "dsv4_swa", "msa"
MODULES = (INDEXED, SHARED, CHOSEN, WHOLE, NEAR, BLOCKS)
"""Kinds by the names that engines' modules have: an indexer's, one that takes its tokens from another layer's;
compressed KV of which some is chosen, all of which is read, in a window alone; blocks of tokens."""
