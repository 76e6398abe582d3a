"""Measurement of a pair on this machine: passes alone, beside each other, and what serving adds. Knows torch and realrun."""
