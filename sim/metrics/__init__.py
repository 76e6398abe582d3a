"""What a run leaves behind and what is computed from it: records, vLLM's metrics, phases, intervals."""
