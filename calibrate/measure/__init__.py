"""Times a pair on this machine: its passes alone, beside each other, and what serving adds. Knows torch and realrun."""
