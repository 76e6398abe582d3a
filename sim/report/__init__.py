"""Output for people: results folders, tables, figures, traces."""
