"""Policies side by side: how long a run is, whether a load is stable, a pool of processes, intervals."""
