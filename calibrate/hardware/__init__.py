"""What is known before anything is measured: datasheets, engines' constants, models by name."""
