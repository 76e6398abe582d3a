"""Hosts on a virtual clock: the wake order, SimPy's clock, a script for tests."""
