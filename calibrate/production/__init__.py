"""A server by what it says of itself: metrics, log, records of requests; and constants fitted to them."""
