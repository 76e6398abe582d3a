"""How often stated intervals and verdicts hold."""
