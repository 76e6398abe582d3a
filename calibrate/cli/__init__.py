"""`lanesim calibrate`. Heavy imports inside the functions."""
