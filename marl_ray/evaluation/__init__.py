"""Measuring without learning: completions that somebody else sampled, and policies on a split.

Scoring: `completions` reads the file, `sandboxes` execute without Ray, `scoring` makes a line of numbers of each.
"""
