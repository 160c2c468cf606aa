"""External modes: the messages that each agent receives about a joint action between two turns."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments import abilities
from marl_ray.environments.base import Environment
from marl_ray.environments.plugin_checks import check_texts, qualified_method_name
from marl_ray.external.client import Client, EndpointError, last_object
from marl_ray.external.endpoints import Endpoint, endpoint_of

logger = logging.getLogger(__name__)

MAX_EDIT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Message:
    """A mode's message to one agent: facts, one per line, and an expert's edit of the agent's answer."""

    lines: tuple[str, ...] = ()
    edit: str = ""


class Mode(ABC):
    """A kind of message about joint actions, created once before a run starts. Raises UserError if the environment or
    the config does not support the mode."""

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
        return [Message()] * self.environment.num_agents, {}


class Feedback(Mode):
    """The environment's feedback: every level in detail, whether each level passed, or whether all levels passed."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        super().__init__(config, environment)
        if config.mode not in environment.modes:
            supported = ", ".join(dict.fromkeys([*environment.modes, "plain", "expert_edits"]))
            raise UserError(f"external.mode {config.mode} is not supported by the environment, only {supported}")

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        environment = self.environment
        messages = []
        for agent in range(environment.num_agents):
            lines = environment.feedback(attempt, outcome, self.config.mode, agent)
            check_texts(qualified_method_name(environment, "feedback"), lines)
            messages.append(Message(tuple(lines)))
        return messages, {}


class ExpertEdits(Mode):
    """An expert model's edit of each agent's answer. The metric `expert/failures` is the share of requests without a
    result."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        super().__init__(config, environment)
        self.expert = Expert(endpoint_of(config), config.expert_timeout_s, config.expert_retries)
        self.note = f"expert: {self.expert}, with the key in {self.expert.key_variable}"

    async def messages(self, task: Task, attempt: Any, outcome: Outcome) -> tuple[list[Message], dict[str, float]]:
        roles = self.environment.roles(task)
        edits = await self.expert.edits(abilities.question(self.environment, task, attempt), roles) or {}
        return [Message(edit=edits.get(role, "")) for role in roles], {"expert/failures": float(not edits)}


class Expert:
    """A client of one expert model, for one event loop. A failed request is retried up to `retries` times with pauses.
    Each request has a timeout of `timeout_s` seconds."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 60.0, retries: int = 3) -> None:
        self._client = Client(endpoint, timeout_s, retries, "expert", repeat_lost=True)
        self._logged: set[str] = set()

    def __str__(self) -> str:
        return str(self._client.endpoint)

    @property
    def key_variable(self) -> str:
        return self._client.endpoint.key_variable

    async def edits(self, question: str, names: Sequence[str]) -> dict[str, str] | None:
        """Return the suggested edits by name, None if all attempts fail. Raises UserError if the key is refused."""
        try:
            edits, _ = await self._client.ask(question, lambda reply: parse_edits(reply.text, names))
            return edits
        except EndpointError as error:
            # Each kind of failure is logged once. The metric expert/failures counts all of them.
            if str(error) not in self._logged:
                self._logged.add(str(error))
                logger.warning(f"expert {self} gave no edit ({error}); more of this kind show in expert/failures alone")
            return None


def parse_edits(text: str, names: Sequence[str]) -> dict[str, str]:
    """Return the edits in a reply, from its last JSON object with one of the names, fenced or within prose. Missing
    and empty values are no edits. Raises EndpointError if there is no such object."""
    found = last_object(text, names)
    edits = {}
    for name in names:
        value = found.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            value = json.dumps(value)
        # A tokenizer rejects half a surrogate pair, which JSON permits.
        edit = value[:MAX_EDIT_CHARS].encode("utf-8", "replace").decode("utf-8").strip()
        if edit:
            edits[name] = edit
    return edits
