"""The training loop and everything that runs in it."""
