"""A GPU campaign in steps that resume: `python -m calibrate.measure.campaign OUT`."""
