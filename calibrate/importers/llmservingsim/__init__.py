"""LLMServingSim's per-layer times as profiles."""
