"""The threaded host: clocks, threads, tickets, and how long the host takes to react."""
