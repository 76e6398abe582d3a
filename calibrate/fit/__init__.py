"""Measured points and kernel tables, and constants fitted to the latter, each with its error. No torch."""
