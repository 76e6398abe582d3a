"""CSV tables that hold parts of a profile: Vidur's GEMMs, Frontier's attention."""
