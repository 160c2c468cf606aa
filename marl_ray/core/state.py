"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where the loop is. The place in the data and all streams of randomness follow from `step` and `draws`."""

    step: int
    """Steps done, and so every agent's weight version: each step makes a new one, with or without a gradient."""
    env_steps: int
    """Joint samples taken."""
    learned: int
    """Optimizer steps, over all policies."""
    draws: int = 0
    """Draws that are in a batch, learned from or skipped; 0 without dynamic_sampling, where they follow from `step`."""

    def after(self, joint_samples: int, optimizer_steps: int, draws: int = 0) -> TrainerState:
        """One step further, in which these were taken."""
        learned = self.learned + optimizer_steps
        return TrainerState(self.step + 1, self.env_steps + joint_samples, learned, self.draws + draws)
