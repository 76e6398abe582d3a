"""The same policies on real hardware: models, kernels, the threaded host, and records compared with records."""
