"""Rates of two passes that run over and over on two streams: the first thing to ask of a GPU lent for minutes."""
