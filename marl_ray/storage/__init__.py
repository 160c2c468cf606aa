"""The run folder: configuration, batch log, checkpoints, lock and resume state."""
