"""Results of a run: records, vLLM's metrics, intervals."""
