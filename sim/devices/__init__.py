"""Devices under streams of works, and links between them."""
