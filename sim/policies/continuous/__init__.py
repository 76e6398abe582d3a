"""Continuous batching: what a step carries (plan), the loops that serve (loop), decoding rows as totals (totals)."""
