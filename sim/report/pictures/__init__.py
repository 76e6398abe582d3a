"""Figures of comparisons, of recorded works and of stores."""
