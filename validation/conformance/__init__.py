"""Schedulers of real engines beside lanesim's, step by step."""
