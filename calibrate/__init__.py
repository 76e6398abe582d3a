"""Profiles from this machine's times and from published tables, with their error on points left out of the fit."""
