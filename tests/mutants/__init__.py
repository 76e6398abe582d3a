"""Changes of single lines that some test must notice."""
