"""Supervised warm start of the agents, from a run's own log or from answers in a file (`marl-ray warmstart`)."""
