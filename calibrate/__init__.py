"""Measuring and importing costs: times passes, fits profiles, reads published kernel tables."""
