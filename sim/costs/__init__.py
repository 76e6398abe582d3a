"""What a work costs: profiles, their constants and points, and the passes that a work is made of."""
