"""Sections of environments that change the team or the reward of another environment."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config.values import Fraction, NonNegativeInt, OneTo100, PositiveInt, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class PartnersConfig(Section):
    """Frozen partners of the environment `frozen_partners`: agents without learning, listed after the team, that answer
    in place of an agent of the team for a part of the reward."""

    environment: str | None = None
    """Environment of the team, such as code_generation."""
    stand_in: tuple[NonNegativeInt, ...] = ()
    """For each frozen agent, the number of the agent that it stands in for, from 0. The team are the agents before
    them."""
    weight: Fraction = 0.5
    """Share of frozen partners in the reward of an agent: (1 - weight) times the reward with its own team plus weight
    times the mean reward with partners in place of other agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralizedConfig(Section):
    """Environment `centralized`: one policy writes the parts of all agents of a team in one completion."""

    environment: str | None = None
    """Environment of the team, such as code_generation. null: the environment of dataset.type."""
    team: OneTo100 | None = None
    """Number of agents whose parts one completion has. null: num_agents, which then becomes 1, and max_new_tokens
    becomes the sum over these agents, so that `environment: centralized` alone turns the config of a team into this
    baseline."""


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
