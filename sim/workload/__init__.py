"""What is asked of the server and when: generated arrivals and lengths, or recorded traces."""
