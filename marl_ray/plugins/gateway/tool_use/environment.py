"""The environment `tool_use`: another environment, whose agents call tools before they answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data import DATASETS
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.base import BaseEnvironment, Environment, Executor
from marl_ray.plugins.gateway.environment import GatewayEnvironment, check_credit
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.tool_calls import CallFormat
from marl_ray.plugins.gateway.tool_use.options import ToolUseConfig
from marl_ray.plugins.gateway.tool_use.tool_loop import ToolLoop
from marl_ray.plugins.gateway.tool_use.tools import make_tools

if TYPE_CHECKING:
    from marl_ray.config import Config

NAME = "tool_use"


class NoServer:
    """The server of episodes that no other process plays."""

    base_url = ""

    @contextmanager
    def serving(self, episode: Any) -> Iterator[None]:
        yield


class ToolUse(GatewayEnvironment):
    """An environment whose agents have tools. The environment `judge` defines prompts, roles and rewards."""

    judge: Environment[Any]

    def __init__(self, num_agents: int, gateway: GatewayConfig, judge: Environment[Any]) -> None:
        super().__init__(num_agents, gateway, program=None, judge=judge)  # type: ignore[arg-type]
        self.names = [f"agent_{number}" for number in range(num_agents)]

    @classmethod
    def from_config(cls, config: Config) -> Self:
        name = config.section(ToolUseConfig).environment or DATASETS.get(config.dataset.type).environment
        if not name or name in (NAME, "gateway"):
            raise UserError("environment tool_use needs an environment of answers: set tool_use.environment")
        judge = ENVIRONMENTS.get(name).from_config(config)
        check_settings(config, name, judge)
        return cls(config.num_agents, config.section(GatewayConfig), judge)

    def roles(self, task: Task) -> list[str]:
        return self.judge.roles(task)

    def player(self, config: Config, generators: Sequence[Any], executor: Executor) -> Any:
        settings = config.section(ToolUseConfig)
        call_formats: list[CallFormat | None] = []
        for renderer in self.renderers(config.agents, config.model):
            call_formats.append(renderer.call_format if renderer.renders_tools else None)
        self.program = ToolLoop(
            self.judge,
            make_tools(settings, config.sandbox, config.external, self.judge, executor),
            settings.agents or range(config.num_agents),
            call_formats,
            settings.max_tool_calls,
            settings.max_result_chars,
        )
        return super().player(config, generators, executor)

    async def server(self) -> Any:
        """Return a server that serves nothing: the loop asks the agents in this process."""
        return NoServer()


def check_settings(config: Config, name: str, judge: BaseEnvironment) -> None:
    """Raise UserError for settings that answers with tools cannot have."""
    section = config.algorithm
    settings = config.section(ToolUseConfig)
    if not isinstance(judge, Environment):
        raise UserError(f"tool_use.environment {name} has no turns in which agents could call tools: use another one")
    if abilities.order(judge, Task("", "", {})) != [list(range(config.num_agents))]:
        raise UserError(f"tool_use.environment {name} has an order of agents, which tool_use does not follow")
    if not settings.tools:
        raise UserError("tool_use.tools is empty: name a tool, or set environment to the environment of the answers")
    if settings.agents and max(settings.agents) >= config.num_agents:
        raise UserError(f"tool_use.agents names agent {max(settings.agents)}, and there are {config.num_agents}")
    if "run_tests" in settings.tools and config.external.mode not in judge.modes:
        raise UserError(
            f"tool run_tests returns the feedback of external.mode {config.external.mode}, which environment {name} "
            f"does not have: set it to one of {', '.join(judge.modes)}"
        )
    if config.training.num_turns != 1:
        raise UserError(f"{section}.num_turns is {config.training.num_turns}, and environment tool_use has 1: set it")
    if config.training.joint_mode != "aligned":
        raise UserError(f"{section}.joint_mode {config.training.joint_mode} is for one completion: set it to aligned")
    check_credit(config, NAME)
    if config.training.overlong == "penalty":
        raise UserError(f"{section}.overlong penalty is for one completion per answer: set it to mask or none")
