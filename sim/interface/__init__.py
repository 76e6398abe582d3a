"""The interface between policies and hosts: requests, works, what a policy may ask of a host, lanes."""
