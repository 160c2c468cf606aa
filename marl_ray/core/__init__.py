"""The nouns of a run, and what every room may use: no Ray, no torch, no engine."""
