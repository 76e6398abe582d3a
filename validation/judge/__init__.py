"""Measured cells beside simulated ones: docs/accuracy.md by section, docs/silicon.md by class."""
