"""Section `reward_model` of a config."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config.values import PositiveInt, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelConfig(Section):
    """Environment `reward_model`: the reward of a joint answer is the score of a learned model."""

    environment: str | None = None
    """Environment of the task, such as code_generation. null: the environment of dataset.type."""
    name: str | None = None
    """Reward model: a folder of `marl-ray rewardmodel`, or a hub id of a sequence classification model with one
    label."""
    device: str = "cpu"
    """Device of the driver process on which the reward model computes, such as cuda:0."""
    threads: PositiveInt = 1
    """CPU threads with which the reward model computes."""
    max_length: PositiveInt | None = None
    """Maximum number of tokens that the reward model reads; longer texts lose tokens at their start. null: as many as
    it has positions."""
