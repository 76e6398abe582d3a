"""What is known before anything is measured: models by name, profiles by data sheet, constants of engines."""
