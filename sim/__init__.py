"""Simulation of speculative-decoding serving: policies, devices, costs, workloads, records.

Imports neither torch nor anything of calibrate and realrun.
"""
