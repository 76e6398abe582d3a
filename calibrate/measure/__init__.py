"""A pair measured on this machine: passes alone, beside each other, and what serving adds. Knows torch, realrun."""
