"""The guest process, the only process that runs a program, which can rewrite this code: nothing relies on it."""
