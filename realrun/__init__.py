"""The same policies on real hardware: kernels, the threaded host, and records compared with records."""
