"""What a pass computes and moves, added up by hand for a model of two layers."""

from __future__ import annotations

from calibrate.fit.fit_errors import use_of
from sim.costs.passes import PassUse, pass_use
from sim.costs.shapes import ModelShape
from sim.interface.work import Chunk, Kind, Model, Work

SMALL = ModelShape(
    name="small",
    layers=2,
    hidden=4,
    intermediate=8,
    heads=2,
    kv_heads=1,
    head_dim=2,
    vocab=10,
    tied_embeddings=True,
    max_context=64,
)
"""144 weights a layer and 40 of the LM head; 8 bytes of KV and 136 of elementwise traffic per token and layer."""
DRAFT = Work(kind=Kind.DRAFT, model=Model.DRAFT, rows=2, row_tokens=2, context_tokens=20, head_rows=2, draft_tokens=3)


def test_a_draft_of_three_passes_reads_its_weights_three_times() -> None:
    """A pass: 2 tokens x 2 x 288 + 2 rows x 2 x 40 + 2 layers x 4 x 4 x 22 query-key pairs; 2 x 328 bytes of weights,
    22 x 16 of KV, 2 x 272 of the rest."""
    assert use_of(SMALL, DRAFT) == PassUse(3 * 2016.0, 3 * 1552.0)


def test_a_chunk_attends_to_its_history_and_half_of_itself() -> None:
    """4 tokens x 2 x 288 + 2 x 40 + 2 layers x 4 x 4 x 4 (6 + 2) pairs; 656 bytes of weights, 10 x 16, 4 x 272."""
    work = Work(kind=Kind.PREFILL, chunks=(Chunk(4, 6),), head_rows=1)
    assert use_of(SMALL, work) == PassUse(3408.0, 1904.0)


def test_two_devices_share_all_but_the_one_kv_head() -> None:
    assert pass_use(SMALL, 2, 2, 2, 20, (), 2) == PassUse(2016.0 / 2, (656.0 + 544.0) / 2 + 352.0)
