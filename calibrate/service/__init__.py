"""What serving adds to passes: lanes, pauses, turns at the interpreter."""
