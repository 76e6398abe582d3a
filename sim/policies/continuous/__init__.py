"""Continuous batching: what a step carries (plan; apart where prompts go first), the loop that serves (loop)."""
