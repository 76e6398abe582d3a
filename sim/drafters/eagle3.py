"""EAGLE-3: a head of the target, one decoder layer that reads its features."""

import msgspec

from sim.costs.shapes import ModelShape
from sim.drafters.drafter import Drafter, beside

VOCAB = 32000
"""Draft vocabulary of the published heads."""
HEADS = {
    "apertus-8b": {"intermediate": 14336, "vocab": 131072},
    "gpt-oss-120b": {"intermediate": 17280, "vocab": 201088},
}
"""Target -> where its published head differs: Apertus 8B's (EAGLE-3.1) is gated and copies the target's LM head
(swiss-ai/apertus-speculative-decoding); that of gpt-oss-120b (nvidia/gpt-oss-120b-Eagle3) keeps the vocabulary."""
SPARSE_WIDTH = 6
"""Width of the dense MLP of a head for a model with experts, over its hidden size; assumed: its layers say nothing."""


def head(target: ModelShape) -> ModelShape:
    """The EAGLE-3 draft head of `target`: one decoder layer of its width that reads embedding and feature together.

    The feature is three of the target's hidden states, fused by a projection; the LM head is its own, over a smaller
    vocabulary; the embedding is the target's.

    Source: Li et al. 2025 (arXiv 2503.01840), and the published config of EAGLE3-LLaMA3.1-Instruct-8B.
    """
    shape = beside(
        target,
        name="eagle3",
        layers=1,
        intermediate=target.intermediate if target.experts is None else SPARSE_WIDTH * target.hidden,
        vocab=min(VOCAB, target.vocab),
        qkv_inputs=2,
        fused_features=3,
    )
    return msgspec.structs.replace(shape, **HEADS.get(target.name, {}))


DRAFTER = Drafter(
    name="eagle3",
    spellings=("eagle",),
    reads_features=True,
    mark="fused_features",
    what="an EAGLE-3 head",
    head=head,
    sglang="EAGLE3",
    sglang_adapts=True,
)
