"""Which drafted tokens are accepted: how people quote it, models, recorded tapes, a request's draws, fits."""
