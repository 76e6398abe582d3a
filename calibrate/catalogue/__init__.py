"""Knowledge before any measurement: models by name, profiles by data sheet, constants of engines."""
