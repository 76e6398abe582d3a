"""Acceptance of drafted tokens: how people quote it, models, recorded tapes, a request's draws, fits."""
