"""What a pass computes and moves, added up by hand for a model of two layers."""

from __future__ import annotations

import msgspec

from sim.costs.passes import PassUse, pass_use
from sim.costs.shapes import ModelShape
from sim.interface.work import Chunk

SMALL = ModelShape(
    name="small", layers=2, hidden=4, intermediate=8, heads=2, kv_heads=1, head_dim=2, vocab=10, tied_embeddings=True,
    max_context=64,
)  # fmt: skip
"""144 weights a layer and 40 of the LM head; 8 bytes of KV and 136 of elementwise traffic per token and layer."""


def test_a_row_reads_the_weights_once_and_all_kv() -> None:
    """2 tokens x 2 x 288 + 2 rows x 2 x 40 + 2 layers x 4 x 4 x 22 query-key pairs; 2 x 328 bytes of weights, 22 x 16
    of KV, 2 x 272 of the rest."""
    assert pass_use(SMALL, 1, 2, 2, 20, (), 2) == PassUse(2016.0, 1552.0)


def test_a_chunk_attends_to_its_history_and_half_of_itself() -> None:
    """4 tokens x 2 x 288 + 2 x 40 + 2 layers x 4 x 4 x 4 (6 + 2) pairs; 656 bytes of weights, 10 x 16, 4 x 272."""
    assert pass_use(SMALL, 1, 0, 0, 0, (Chunk(4, 6),), 1) == PassUse(3408.0, 1904.0)


def test_two_devices_share_all_but_the_one_kv_head() -> None:
    assert pass_use(SMALL, 2, 2, 2, 20, (), 2) == PassUse(2016.0 / 2, (656.0 + 544.0) / 2 + 352.0)


def test_layers_with_a_window_read_and_meet_what_it_holds() -> None:
    """One of two layers looks back 6 tokens: 14 pairs and tokens in place of 22; 2 x 6 + 2 of KV where both have it."""
    half, both = (msgspec.structs.replace(SMALL, window=6, window_layers=layers) for layers in (1, 2))
    assert pass_use(half, 1, 2, 2, 20, (), 2) == PassUse(2016.0 - 4 * 4 * 8, 1552.0 - 8 * 8)
    assert pass_use(both, 1, 2, 2, 20, (), 2) == PassUse(2016.0 - 2 * 4 * 4 * 8, 1552.0 - 2 * 8 * 8)


def test_a_chunk_behind_a_long_history_reads_a_windows_part_of_it() -> None:
    """4 tokens behind 36, of which a window of 6 has 6 and 6 pairs for each token; the other layer 38."""
    half = msgspec.structs.replace(SMALL, window=6, window_layers=1)
    whole = pass_use(SMALL, 1, 0, 0, 0, (Chunk(4, 36),), 1)
    assert pass_use(half, 1, 0, 0, 0, (Chunk(4, 36),), 1) == PassUse(
        whole.flops - 4 * 4 * 4 * 32, whole.num_bytes - 30 * 8
    )
