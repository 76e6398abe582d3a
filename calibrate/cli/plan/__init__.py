"""`lanesim plan`."""
