"""What a pass computes and moves, added up by hand for a model of two layers."""

from __future__ import annotations

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
