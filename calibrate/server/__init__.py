"""Constants and acceptance from a server that runs: its metrics, log, results of its benchmark, or a probe of it."""
