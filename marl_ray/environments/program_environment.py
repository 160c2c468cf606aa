"""Environments whose episodes programs play: they have no turns, and score no answers themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marl_ray.environments.base import BaseEnvironment, Executor

if TYPE_CHECKING:
    from marl_ray.config import Config


class ProgramEnvironment(BaseEnvironment):
    """A kind of task whose programs decide which agents answer which prompts. `first_prompts` only stand for the
    prompts of the programs in checks of the models."""

    @abstractmethod
    def player(self, config: Config, generators: Sequence[Any], executor: Executor) -> Any:
        """Return the player of the episodes, a `marl_ray.rollout.player.Player`. `generators` has one entry per
        agent."""
