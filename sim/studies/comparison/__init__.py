"""Comparisons with all that they rest on, and values of keys side by side."""
