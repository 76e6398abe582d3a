"""Simulation of speculative-decoding serving. Knows neither torch nor anything of calibrate and realrun."""
