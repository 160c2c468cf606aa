"""File formats of other evaluation programs."""
