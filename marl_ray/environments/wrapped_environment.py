"""Environments around another environment, whose tasks other agents answer, or whose rewards are others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.base import A, Environment, Executor
from marl_ray.environments.program_environment import ProgramEnvironment

if TYPE_CHECKING:
    from marl_ray.config import AgentConfig, Config


class WrappedEnvironment(Environment[A], abilities.ExecutesPrograms, abilities.HoldsResources):
    """An environment with the tasks, programs and external modes of `base`. Abilities that read attempts are for its
    subclasses to pass on, because their attempts are others."""

    def __init__(self, base: Environment[Any], num_agents: int) -> None:
        super().__init__(num_agents)
        self.base = base
        self.pays_probes = abilities.pays_probes(base)

    @property
    def modes(self) -> tuple[str, ...]:  # type: ignore[misc, override]
        """The external modes of the wrapped environment."""
        return self.base.modes

    def check_task(self, task: Task) -> None:
        self.base.check_task(task)

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        return await abilities.execute(self.base, programs, sandbox)

    async def close(self) -> None:
        await abilities.close(self.base)


def base_environment(config: Config, setting: str, name: str | None, agents: Sequence[AgentConfig]) -> Environment[Any]:
    """Return the environment `name` for these agents. Raises UserError, which names the setting, if there is none that
    `config.environment` could wrap."""
    if not name or name == config.environment:
        raise UserError(f"environment {config.environment} changes another environment: set {setting}")
    kind = ENVIRONMENTS.get(name)
    if isinstance(kind, type) and issubclass(kind, ProgramEnvironment):
        raise UserError(f"{setting} {name} has no joint answers: choose another one")
    wrapped: Environment[Any] = kind.from_config(replace(config, agents=tuple(agents), environment=name))
    return wrapped
