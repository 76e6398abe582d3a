"""`lanesim replay` and `lanesim validate`; heavy imports inside the functions."""
