"""Starting, checking, stopping, scaling and replaying a training run."""
