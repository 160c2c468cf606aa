"""From weighted groups to weights: micro-batches, log-probabilities, the loss, and the learner that takes a step."""
