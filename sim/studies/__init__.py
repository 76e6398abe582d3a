"""Questions asked of many runs: grids and stores of points, capacity, tuning. One run: `sim.run`."""
