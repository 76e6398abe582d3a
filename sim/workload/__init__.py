"""Requests and their arrivals: generated arrivals and lengths, or recorded traces."""
