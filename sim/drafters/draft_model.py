"""A smaller model of the target's vocabulary. Its first pass has two tokens a row, then it runs once per token."""

from sim.drafters.drafter import Drafter, reads_two

DRAFTER = Drafter(
    name="draft_model",
    passes=reads_two,
    is_model=True,
    sglang="STANDALONE",
)
