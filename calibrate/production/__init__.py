"""Constants and acceptance from a server that runs: its metrics, its log, its benchmark's results, or a probe of it."""
