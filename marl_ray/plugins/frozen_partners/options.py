"""Section `partners` of a config."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config.values import Fraction, NonNegativeInt, Section


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

    @property
    def added_agents(self) -> int:
        """Number of frozen agents."""
        return len(self.stand_in)
