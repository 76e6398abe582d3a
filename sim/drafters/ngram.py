"""A look-up of n-grams in the text so far."""

from sim.drafters.drafter import Drafter

DRAFTER = Drafter(name="ngram", looks_up=True, has_checkpoint=False, sglang="NGRAM")
