"""Real schedulers' decisions, step by step, beside those of `continuous`."""
