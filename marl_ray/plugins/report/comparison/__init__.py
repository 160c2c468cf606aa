"""Comparison of runs: paired differences over tasks and seeds, a table and a figure for a paper."""
