"""Draft lengths by batch size and context."""
