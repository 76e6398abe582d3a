"""How wrong a profile is: against points, another profile, published tables."""
