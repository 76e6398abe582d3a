"""`lanesim replay`. Heavy imports inside the functions."""
