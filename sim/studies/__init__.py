"""Questions asked of many runs: grids and stores of points, capacity, tuning, uncertainty. One run: `sim.experiment`."""
