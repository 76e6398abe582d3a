"""Ways of drafting, one file each: what it runs, what engines call it. A file with a DRAFTER is found by itself."""
