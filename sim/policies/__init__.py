"""Schedulers, one file each: coroutines over a small host, choices as pure functions."""
