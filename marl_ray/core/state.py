"""The progress and the result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl_ray.core.episode import Episode


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The progress of the training loop, stored in `trainer.json`. The position in the data and all random streams
    follow from `step` and `prompt_samples`."""

    step: int
    """Completed steps, which is also every agent's weight version: each step makes a new version, changed or not."""
    env_steps: int
    """Joint samples."""
    optimizer_steps: int
    """Optimizer steps of all policies."""
    prompt_samples: int = 0
    """Prompt samples that belong to a batch, learned from or skipped. 0 without dynamic sampling."""

    def after(self, joint_samples: int, optimizer_steps: int, prompt_samples: int = 0) -> TrainerState:
        """Return the state one step later."""
        return TrainerState(
            step=self.step + 1,
            env_steps=self.env_steps + joint_samples,
            optimizer_steps=self.optimizer_steps + optimizer_steps,
            prompt_samples=self.prompt_samples + prompt_samples,
        )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The end of a run: its last and first step, and the last evaluation's metrics and episodes, if any."""

    step: int
    env_steps: int
    first_step: int
    last_evaluation: Mapping[str, float | int | str] | None
    evaluation_episodes: list[Episode]
