"""Fits to measured points, each with its error."""
