"""What a pass computes and moves, added up by hand for a model of two layers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sim.costs.passes import pass_use
from sim.costs.shapes import ModelShape
from sim.interface.work import Chunk

SMALL = ModelShape(
    name="small", layers=2, hidden=4, intermediate=8, heads=2, kv_heads=1, head_dim=2, vocab=10, tied_embeddings=True,
    max_context=64,
)  # fmt: skip
"""144 weights a layer and 40 of the LM head; 8 bytes of KV and 136 of elementwise traffic per token and layer."""


HALF, BOTH = (msgspec.structs.replace(SMALL, window=6, window_layers=layers) for layers in (1, 2))
USES: dict[str, tuple[tuple[Any, ...], tuple[float, float]]] = {
    # 2 tokens x 2 x 288 + 2 rows x 2 x 40 + 2 layers x 4 x 4 x 22 query-key pairs; 2 x 328 bytes of weights, 22 x 16 of
    # KV, 2 x 272 of the rest.
    "a row reads the weights once and all KV": ((SMALL, 1, 2, 2, 20, (), 2), (2016, 1552)),
    # 4 tokens x 2 x 288 + 2 x 40 + 2 layers x 4 x 4 x 4 (6 + 2) pairs; 656 bytes of weights, 10 x 16, 4 x 272.
    "a chunk attends to its history and half of itself": ((SMALL, 1, 0, 0, 0, (Chunk(4, 6),), 1), (3408, 1904)),
    "two devices share all but the one KV head": ((SMALL, 2, 2, 2, 20, (), 2), (2016 / 2, (656 + 544) / 2 + 352)),
    # A layer that looks back 6 tokens has 14 pairs and tokens in place of 22, and 2 x 6 + 2 of KV.
    "a window reads and meets what it holds": ((HALF, 1, 2, 2, 20, (), 2), (2016 - 4 * 4 * 8, 1552 - 8 * 8)),
    "two windows do so twice": ((BOTH, 1, 2, 2, 20, (), 2), (2016 - 2 * 4 * 4 * 8, 1552 - 2 * 8 * 8)),
    # 36 tokens of history are 30 pairs more for each of 4 tokens in 2 layers, and 30 x 16 bytes of KV.
    "a long history is met by all": ((SMALL, 1, 0, 0, 0, (Chunk(4, 36),), 1), (3408 + 3840, 1904 + 480)),
    # The window has 6 pairs in place of 38 for each token, and 10 tokens of KV in place of 40.
    "a window has a part of a long history": (
        (HALF, 1, 0, 0, 0, (Chunk(4, 36),), 1), (3408 + 3840 - 4 * 4 * 4 * 32, 1904 + 480 - 30 * 8)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "uses"), USES.values(), ids=USES)
def test_a_pass_uses_the_hand_sum(given: tuple[Any, ...], uses: tuple[float, float]) -> None:
    assert pass_use(*given) == uses
