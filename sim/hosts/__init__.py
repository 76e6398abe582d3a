"""Hosts on a virtual clock: the wake order, simulated devices, a script for tests."""
