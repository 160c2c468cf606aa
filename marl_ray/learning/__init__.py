"""Training of one policy: micro-batches, losses, critics, sharding and checkpoints. Start with `learner.py`."""
