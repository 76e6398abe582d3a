"""Figures: of comparisons, of recorded works, of stores; and what they share."""
