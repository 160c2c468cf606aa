"""From a joint action and its outcome to every agent's next prompt (the Dec-POMDP's observation function)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.base import Environment
from marl_ray.environments.plugin_checks import check_count, check_row_names, check_texts, qualified_method_name
from marl_ray.external import MODES
from marl_ray.external.modes import Message, Mode


@dataclass(frozen=True, slots=True)
class Observations:
    """What the agents read next: one prompt an agent, and how that came about, as means to be logged."""

    prompts: list[str]
    metrics: dict[str, float]


class Transition:
    """One external mode, for one environment. Raises UserError for a mode that cannot be."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        self._config = config
        self._environment = environment
        self._mode: Mode = MODES.get(config.mode)(config, environment)

    @property
    def note(self) -> str:
        """What the start of a run says of the mode; empty where there is nothing to say."""
        return self._mode.note

    async def next_prompts(
        self, task: Task, first_prompts: Sequence[str], attempt: Any, outcome: Outcome
    ) -> Observations:
        """One prompt per agent. Waits only for the expert, and for that within its time-outs and retries.

        Raises TypeError and ValueError, which name the plug-in, where it does not give one entry per agent.
        """
        agents = len(first_prompts)
        told = await self._mode.messages(task, attempt, outcome)
        _check_told(qualified_method_name(self._mode, "messages"), told, agents)
        messages, metrics = told
        previous = self._environment.previous_answers(attempt)
        check_texts(qualified_method_name(self._environment, "previous_answers"), previous, agents)
        instructions = self._environment.revisions(task)
        check_texts(qualified_method_name(self._environment, "revisions"), instructions, agents)
        prompts = [
            next_prompt(
                first if self._config.original_prompt else None,
                answer if self._config.previous_response else None,
                message,
                instruction,
            )
            for first, answer, message, instruction in zip(first_prompts, previous, messages, instructions, strict=True)
        ]
        return Observations(prompts, metrics)


def _check_told(who: str, told: Any, agents: int) -> None:
    """One Message per agent, and metrics. Raises TypeError and ValueError."""
    messages, metrics = told if isinstance(told, tuple) and len(told) == 2 else (None, None)
    if not isinstance(messages, list | tuple) or not isinstance(metrics, Mapping):
        raise TypeError(f"{who} must return a list of messages and a dict of metrics, not {told!r:.80}")
    check_row_names(who, "metric", metrics)
    check_count(who, messages, agents)
    for message in messages:
        if not isinstance(message, Message) or not isinstance(message.edit, str):
            raise TypeError(f"{who} must return a Message per agent, whose edit is a text, not {message!r:.80}")
        check_texts(f"{who} of a message's lines", message.lines)


def next_prompt(first_prompt: str | None, previous: str | None, message: Message, instruction: str) -> str:
    """One agent's prompt of a later turn: what was, what came of it, what to do. Parts not given stay out.

    Like the environments' words, the text is what a bundled policy was trained on: a golden test holds it.
    """
    parts = []
    if first_prompt is not None:
        parts.append(first_prompt.strip("\n"))
    if previous is not None:
        parts.append("Your previous answer:\n" + (previous.strip("\n") or "(empty)"))
    if message.lines:
        parts.append("Feedback:\n" + "\n".join(message.lines))
    if message.edit:
        parts.append("An expert suggests:\n" + message.edit.strip("\n"))
    parts.append(instruction)
    return "\n\n".join(parts) + "\n"
