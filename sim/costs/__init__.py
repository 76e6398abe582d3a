"""Costs of works: profiles, their constants and points, and the passes that a work is made of."""
