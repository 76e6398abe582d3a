"""A smaller model of the target's vocabulary. Its first pass has two tokens a row, then it runs once per token."""

from sim.drafters.drafter import Drafter

DRAFTER = Drafter(
    name="draft_model",
    passes=lambda rows, verified, tokens: (2 * rows, rows, tokens),
    is_model=True,
    sglang="STANDALONE",
)
