"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where the loop is. The place in the data and all streams of randomness follow from `step`."""

    step: int
    """Steps done."""
    env_steps: int
    """Joint samples taken."""
    weight_versions: tuple[int, ...]
    learned: int
    """Optimizer steps, over all agents."""

    def after(self, joint_samples: int, optimizer_steps: int) -> TrainerState:
        """One step further, in which these were taken. Every agent has a new version, with or without a gradient."""
        versions = tuple(version + 1 for version in self.weight_versions)
        return TrainerState(self.step + 1, self.env_steps + joint_samples, versions, self.learned + optimizer_steps)
