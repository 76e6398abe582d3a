"""How wrong the simulator was about a real run, and why."""
