"""docs/accuracy.md: real runs beside simulated ones. What is judged by class of cells: `validation.silicon`."""
