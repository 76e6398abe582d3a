"""The `lanesim` command: sub-commands one file each, heavy imports inside the functions."""
