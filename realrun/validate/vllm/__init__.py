"""A real vLLM run, request by request, beside its simulation."""
