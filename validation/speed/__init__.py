"""CPU time and memory of the simulator, beside a bare loop of the same decisions."""
