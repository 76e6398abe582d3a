"""A drafter that fills all slots in one pass (PARD, P-EAGLE): a model of its own, or a head trained for it.

The pass has every verified token and the masked slots after the newest, the LM head all slots.
"""

from sim.drafters.drafter import Drafter

DRAFTER = Drafter(
    name="parallel",
    spellings=("pard", "p_eagle", "peagle"),
    passes=lambda rows, verified, tokens: (verified + rows * max(0, tokens - 1), rows * tokens, min(1, tokens)),
    in_one_pass=True,
    on_heads={"eagle3": "parallel_eagle"},
    vllm_method="draft_model",
    vllm_note="a head that drafts in parallel goes by its own method (eagle3) in place of draft_model",
)
