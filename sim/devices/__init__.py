"""Devices under streams of works: solo, shared under contention."""
