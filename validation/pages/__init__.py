"""Pages of docs that are made by running the simulator, and the notebooks."""
