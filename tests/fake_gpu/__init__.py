"""A CUDA runtime that computes nothing, under torch's CUDA build: `make fake-gpu` rehearses the campaign on it.

Memory is a lazy map with a limit, kernels take time on their streams and compute nothing, the rules of capture are
checked. What it cannot show: numbers, times, contention between streams (docs/gpu.md).
"""
