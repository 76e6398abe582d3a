"""Judged: the simulator on real runs of others (tables of cells, vLLM's per-request timestamps), and a profile on
measurements. No torch."""
