"""The dataset type `prompts`: rows with a column `prompt`, for a `RewardEnvironment`."""

from __future__ import annotations

from marl_ray.environments.reward import prompt_task


class Prompts:
    """A `DatasetType` whose tasks have no environment of their own."""

    environment = ""
    task = staticmethod(prompt_task)


PROMPTS = Prompts()
