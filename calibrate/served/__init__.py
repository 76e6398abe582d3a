"""Loads that servers were under: one noun (load), its readers, one fit and one judge. No torch."""
