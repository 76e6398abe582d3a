"""Sub-commands of `lanesim`, one module each; heavy imports inside the functions."""
