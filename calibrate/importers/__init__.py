"""Profiles from published kernel tables and other tools' measurements, one folder per source."""
