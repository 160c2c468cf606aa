"""Training of one policy: micro-batches, losses, gradients, critics, sharding and checkpoints. Start with `learner.py`."""
