"""What streams of works do to a device: solo, shared under contention."""
