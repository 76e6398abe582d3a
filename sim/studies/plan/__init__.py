"""A search over deployments, and the answer that studies of a deployment share."""
