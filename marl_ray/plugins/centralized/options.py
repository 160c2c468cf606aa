"""Section `centralized` of a config."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config.values import OneTo100, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class CentralizedConfig(Section):
    """Environment `centralized`: one policy writes the parts of all agents of a team in one completion."""

    environment: str | None = None
    """Environment of the team, such as code_generation. null: the environment of dataset.type."""
    team: OneTo100 | None = None
    """Number of agents whose parts one completion has. null: num_agents, which then becomes 1, and max_new_tokens
    becomes the sum over these agents, so that `environment: centralized` alone turns the config of a team into this
    baseline."""
