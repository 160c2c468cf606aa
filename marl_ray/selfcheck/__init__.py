"""Checks of the code paths that depend on a machine's devices (`marl-ray doctor`)."""
