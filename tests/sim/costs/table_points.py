"""Ground of the tests of table costs: small tables of round numbers, and a profile of them."""

from __future__ import annotations

import msgspec

from sim.costs.compact_kernels import VerifyAttention
from sim.costs.profile import Profile
from sim.costs.profile_files import load
from sim.costs.shapes import ModelShape
from sim.costs.table_kernels import Curve, DecodeGrid, ModelTable, PrefillGrid, TableKernels, VerifyGrid

SHAPE = ModelShape(
    name="m", layers=2, hidden=1, intermediate=1, heads=1, kv_heads=1, head_dim=1, vocab=1, tied_embeddings=True,
    max_context=1000,
)  # fmt: skip
POINTS = ModelTable(
    body=Curve(tokens=(1, 11, 101), seconds=(1.0, 2.0, 11.0)),
    head=Curve(tokens=(1, 101), seconds=(1.0, 2.0)),
    decode_attention=DecodeGrid(rows=(1, 5), context_tokens=(10, 110), seconds=((1.0, 11.0), (3.0, 23.0))),
    prefill_attention=PrefillGrid(chunk_tokens=(10, 100), history_tokens=(0,), seconds=((1.0,), (100.0,))),
)
"""Per layer: body 0.1 s per token, decode 1 + 0.5 per further row, prefill tokens^2 / 100, so 0.02 s per causal pair;
the largest decode reads 550 tokens in 23 s."""
PAIR_S, KV_TOKEN_S = 0.02, 23 / 550
VERIFY = VerifyGrid(
    queries=(3, 5),
    rows=(1, 5),
    context_tokens=(10, 110),
    seconds=(((2.0, 22.0), (6.0, 46.0)), ((4.0, 24.0), (8.0, 48.0))),
)
HOLES = msgspec.structs.replace(
    POINTS,
    decode_attention=DecodeGrid(
        rows=(1, 2, 8),
        context_tokens=(10, 50, 100, 400),
        seconds=((1.0, None, 2.0, 9.0), (1.1, 1.2, 2.0, None), (2.0, None, 30.0, None)),
    ),
    prefill_attention=PrefillGrid(
        chunk_tokens=(10, 40, 100),
        history_tokens=(0, 50, 200),
        seconds=((1.0, 2.0, 4.0), (5.0, None, 9.0), (9.0, 20.0, None)),
    ),
    verify_attention=VERIFY,
)


def table(points: ModelTable = POINTS) -> Profile:
    """A profile of `points` for target and draft, with host times of a shipped one."""
    kernels = TableKernels(
        target=points,
        draft=points,
        verify_rule=VerifyAttention(kv_slowdown=2.0),
        attention_implementation="by hand",
        kv_layout="paged",
    )
    profile = load("h100-sxm/llama-2-7b+tinyllama-1.1b")
    return msgspec.structs.replace(profile, name="hand", target=SHAPE, draft=SHAPE, kernels=kernels)
