"""Closed-loop cells with measured means beside their simulation."""
