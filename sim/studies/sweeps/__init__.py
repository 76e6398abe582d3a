"""Grids of scenarios: their points, runs in processes or on Ray, and a store that a stopped sweep goes on from."""
