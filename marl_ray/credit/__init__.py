"""From trees to weighted groups: returns, advantages, weights in the loss. Pure functions."""
