"""External modes: what each agent is told of a joint action between two turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.base import Environment
from marl_ray.environments.plugin_checks import check_texts, qualified_method_name
from marl_ray.external.endpoints import endpoint_of
from marl_ray.external.expert import Expert


@dataclass(frozen=True, slots=True)
class Message:
    """What a mode tells one agent: facts, one a line, and an expert's edit of its answer."""

    lines: tuple[str, ...] = ()
    edit: str = ""


class Mode(ABC):
    """One way to tell agents what came of a joint action. Made once for a run, before anything starts.

    Raises UserError where the environment or the config does not allow it.
    """

    note: str = ""
    """What the start of a run says of it."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        self.config = config
        self.environment = environment

    @abstractmethod
    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        """One message an agent, and metrics of how they came about. Whatever it waits for has a deadline."""


class Plain(Mode):
    """No signal at all."""

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        return [Message() for _ in range(self.environment.num_agents)], {}


class Feedback(Mode):
    """The environment's own words, as many as the mode allows: every level in detail, passed or not, one bit."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        super().__init__(config, environment)
        if config.mode not in environment.modes:
            words = ", ".join(dict.fromkeys([*environment.modes, "plain", "expert_edits"]))
            raise UserError(f"external.mode {config.mode}: the environment has no words for it, only for {words}")

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        environment, mode = self.environment, self.config.mode
        lines = [environment.feedback(attempt, outcome, mode, agent) for agent in range(environment.num_agents)]
        for told in lines:
            check_texts(qualified_method_name(environment, "feedback"), told)
        return [Message(tuple(told)) for told in lines], {}


class ExpertEdits(Mode):
    """Another model reads problem and answers, and suggests an edit for each part.

    `expert/failures` is the share of requests that ended without one.
    """

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        super().__init__(config, environment)
        self.expert = Expert(endpoint_of(config), config.expert_timeout_s, config.expert_retries)
        self.note = f"expert: {self.expert}, with the key in {self.expert.key_variable}"

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        roles = self.environment.roles(task)
        edits = await self.expert.edits(self.environment.question(task, attempt), roles) or {}
        return [Message(edit=edits.get(role, "")) for role in roles], {"expert/failures": float(not edits)}
