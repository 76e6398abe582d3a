"""Judges of the simulator: measured cells, published claims, and the pages made of them. Not shipped."""
