"""From a scenario to results: the checked scenario, one run, policies side by side."""
