"""Times this machine and reads published tables: profiles, with their error on held-out points."""
