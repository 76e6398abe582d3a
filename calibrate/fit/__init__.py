"""Constants and tables fitted to what was measured, each with its error."""
