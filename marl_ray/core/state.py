"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where the loop is. The place in the data and all streams of randomness follow from `step`."""

    step: int
    """Steps done, and so every agent's weight version: each step makes a new one, with or without a gradient."""
    env_steps: int
    """Joint samples taken."""
    learned: int
    """Optimizer steps, over all policies."""

    def after(self, joint_samples: int, optimizer_steps: int) -> TrainerState:
        """One step further, in which these were taken."""
        return TrainerState(self.step + 1, self.env_steps + joint_samples, self.learned + optimizer_steps)
