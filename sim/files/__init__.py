"""Files of the user: the only place that writes one."""
