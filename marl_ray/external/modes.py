"""External modes: the messages that each agent receives about a joint action between two turns."""

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
    """A mode's message to one agent: facts, one per line, and an expert's edit of the agent's answer."""

    lines: tuple[str, ...] = ()
    edit: str = ""


class Mode(ABC):
    """A kind of message about joint actions, created once before a run starts.

    Raises UserError if the environment or the config does not support the mode.
    """

    note: str = ""
    """A note that is printed at the start of a run."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        self.config = config
        self.environment = environment

    @abstractmethod
    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        """Return one message per agent, and metrics about the messages. Every wait in it needs a deadline."""


class Plain(Mode):
    """No message."""

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        return [Message() for _ in range(self.environment.num_agents)], {}


class Feedback(Mode):
    """The environment's feedback: every level in detail, whether each level passed, or whether all levels passed."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        super().__init__(config, environment)
        if config.mode not in environment.modes:
            supported = ", ".join(dict.fromkeys([*environment.modes, "plain", "expert_edits"]))
            raise UserError(f"external.mode {config.mode} is not supported by the environment, only {supported}")

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        environment, mode = self.environment, self.config.mode
        lines = [environment.feedback(attempt, outcome, mode, agent) for agent in range(environment.num_agents)]
        for feedback in lines:
            check_texts(qualified_method_name(environment, "feedback"), feedback)
        return [Message(tuple(feedback)) for feedback in lines], {}


class ExpertEdits(Mode):
    """An expert model's edit of each agent's answer.

    The metric `expert/failures` is the share of requests without a result.
    """

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        super().__init__(config, environment)
        self.expert = Expert(endpoint_of(config), config.expert_timeout_s, config.expert_retries)
        self.note = f"expert: {self.expert}, with the key in {self.expert.key_variable}"

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        roles = self.environment.roles(task)
        edits = await self.expert.edits(self.environment.question(task, attempt), roles) or {}
        return [Message(edit=edits.get(role, "")) for role in roles], {"expert/failures": float(not edits)}
