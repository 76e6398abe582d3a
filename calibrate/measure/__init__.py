"""Times passes on this machine: which ones, how often, alone and together."""
