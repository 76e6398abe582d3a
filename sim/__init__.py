"""Simulation of speculative-decoding serving: policies, devices, costs, workloads, records. Knows neither torch nor SimPy outside simhost."""
