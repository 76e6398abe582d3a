"""What others measured, beside what lanesim simulates."""
