"""A search over deployments."""
