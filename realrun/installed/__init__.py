"""The scheduler of an installed serving engine, driven alone: no kernels, no model, no clock of its own."""
