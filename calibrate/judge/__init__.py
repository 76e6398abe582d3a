"""The simulator judged on real runs of others: tables of cells, and vLLM's per-request timestamps. No torch."""
