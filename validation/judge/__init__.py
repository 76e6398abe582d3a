"""Measurements of others, beside what lanesim simulates."""
