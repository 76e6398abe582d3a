"""Every cell of two passes beside each other, into a CSV: the first thing to ask of a GPU lent for minutes."""
