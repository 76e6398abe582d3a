"""`lanesim calibrate`; heavy imports inside the functions."""
