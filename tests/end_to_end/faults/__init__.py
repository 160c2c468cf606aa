"""Fault injection: real runs on a cluster of several nodes while processes are killed."""
