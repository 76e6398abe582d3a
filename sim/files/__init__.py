"""Files of the user: nothing else writes one."""
