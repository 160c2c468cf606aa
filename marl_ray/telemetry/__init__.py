"""Metrics, console, traces and plots of a run."""
