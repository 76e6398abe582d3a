"""Importers of published kernel tables and other tools' profiles, one module per source."""
