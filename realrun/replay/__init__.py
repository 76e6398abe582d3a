"""One real run: a scenario's pair on this machine, the run itself, what was measured."""
