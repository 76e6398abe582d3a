"""Errors of the simulator about a real run, and their parts."""
