"""A server as its clients see it: started, probed, sent a load, predicted and judged."""
