"""A scenario becomes one run: resolved once with a policy and a profile, simulated, and recorded. Many runs:
`sim.compare`."""
