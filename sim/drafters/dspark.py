"""DSpark: a block over all slots whose context is projected features alone, with a serial head behind it.

One pass has the slots, and so has the LM head.
"""

from sim.costs.shapes import ModelShape
from sim.drafters.drafter import Drafter, beside

LAYERS, FEATURES, WINDOW, SLOT_S = 5, 6, 2048, 40e-6


def block(target: ModelShape) -> ModelShape:
    """The DSpark drafter of `target`: five gated layers of its width, each over a sliding window, which fill all slots
    in one pass; six hidden states of the target, fused, are its context; a serial head goes through the slots.

    Source: the published drafter of Apertus-8B (swiss-ai/apertus-speculative-decoding); 40 us a slot as issue reports
    have it.
    """
    return beside(
        target,
        name="dspark",
        layers=LAYERS,
        intermediate=target.intermediate,
        vocab=target.vocab,
        fused_features=FEATURES,
        window=WINDOW,
        window_layers=LAYERS,
        shares_head=True,
        projects_context=True,
        serial_slot_s=SLOT_S,
    )


DRAFTER = Drafter(
    name="dspark",
    passes=lambda rows, verified, tokens: (rows * tokens, rows * tokens, min(1, tokens)),
    in_one_pass=True,
    reads_features=True,
    projects_context=True,
    mark="projects_context",
    what="a DSpark drafter",
    head=block,
)
