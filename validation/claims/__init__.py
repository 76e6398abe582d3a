"""Published claims, each beside what the simulator makes of the conditions it was stated under."""
