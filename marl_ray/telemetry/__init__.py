"""Metrics, episode records and logs of a run, and the sinks that write them."""
