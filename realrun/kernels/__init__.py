"""Passes of a model pair: what runs on the device, the host's account of it, streams and graphs."""
