"""What streams of works do to devices: tickets, one-stream and shared devices, links."""
