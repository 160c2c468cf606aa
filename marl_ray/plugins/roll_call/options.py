"""Section `roll_call` of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCallConfig(Section):
    """Environment roll_call: each writer reads a row of its own and writes it."""

    team: Literal["mean", "worst"] = "mean"
    """Team's reward, besides 1 if all cells are right. mean: the share of right cells; worst: the smallest share of
    right cells of a writer, a bottleneck."""
    own: bool = False
    """Reward each agent for its own row instead: the share of right cells, and 1 if the row is right. The team's
    reward is still logged. This is an oracle, since most tasks do not tell an agent's part."""
