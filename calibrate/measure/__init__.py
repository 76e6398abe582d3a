"""Times a pair on this machine: its passes alone, beside each other, and what serving adds."""
