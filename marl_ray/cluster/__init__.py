"""Capacity planning, placement and the connection to Ray."""
