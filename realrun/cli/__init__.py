"""`lanesim replay`; heavy imports inside the functions."""
