"""What servers did under load: one noun (load), its readers, one fit and one judge. No torch."""
