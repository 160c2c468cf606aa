"""The observation function of the Dec-POMDP: from a joint action and its outcome to each agent's next prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.config import ExternalConfig
from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import abilities
from marl_ray.environments.base import BaseEnvironment, Environment
from marl_ray.environments.plugin_checks import check_count, check_row_names, check_texts, qualified_method_name
from marl_ray.external import MODES
from marl_ray.external.modes import Message, Mode


@dataclass(frozen=True, slots=True)
class Observations:
    """The next prompts, one per agent, and metrics about the mode's messages."""

    prompts: list[Prompt]
    metrics: dict[str, float]


class Transition:
    """An external mode for an environment. Raises UserError for an unsupported mode."""

    def __init__(self, config: ExternalConfig, environment: Environment[Any]) -> None:
        self._config = config
        self._environment = environment
        self._mode: Mode = MODES.get(config.mode)(config, environment)
        self.note = self._mode.note

    async def next_prompts(
        self, task: Task, first_prompts: Sequence[Prompt], attempt: Any, outcome: Outcome
    ) -> Observations:
        """Return one prompt per agent. Only the mode may wait, for example for the expert within its timeouts. Raises
        TypeError or ValueError for an invalid value of a plug-in."""
        agents = len(first_prompts)
        result = await self._mode.messages(task, attempt, outcome)
        _check_messages(qualified_method_name(self._mode, "messages"), result, agents)
        messages, metrics = result
        previous = abilities.previous_answers(self._environment, attempt)
        check_texts(qualified_method_name(attempt, "answers"), previous, agents)
        instructions = self._environment.revisions(task)
        check_texts(qualified_method_name(self._environment, "revisions"), instructions, agents)
        answers: Sequence[str | None] = previous
        if not self._config.previous_response:
            answers = [None] * agents
        prompts = []
        for first, answer, message, instruction in zip(first_prompts, answers, messages, instructions, strict=True):
            prompts.append(self._next_prompt(first, answer, message, instruction))
        return Observations(prompts, metrics)

    def _next_prompt(self, first: Prompt, previous: str | None, message: Message, instruction: str) -> Prompt:
        """Return one agent's next prompt, or with composition `chat` the message that continues its conversation.

        Of a first prompt with messages the system messages are kept; with `original_prompt` all messages are kept, and
        the last one is followed by the other parts.
        """
        if self._config.composition == "chat":  # the conversation has the other parts
            return next_prompt(None, None, message, instruction)
        first_text = None
        if self._config.original_prompt:
            first_text = first if isinstance(first, str) else first[-1]["content"]
        text = next_prompt(first_text, previous, message, instruction)
        if isinstance(first, str):
            return text
        kept = []
        for earlier in first[:-1]:
            if self._config.original_prompt or earlier["role"] == "system":
                kept.append(earlier)
        return [*kept, {"role": "user", "content": text}]


def transition_of(config: ExternalConfig, environment: BaseEnvironment) -> Transition | None:
    """Return the transition of an environment with turns, None for episodes of programs. Raises UserError for an
    unsupported mode."""
    if not isinstance(environment, Environment):
        return None
    return Transition(config, environment)


def _check_messages(method: str, result: Any, agents: int) -> None:
    """Check for one Message per agent, and metrics. Raises TypeError or ValueError."""
    is_pair = isinstance(result, tuple) and len(result) == 2
    if not is_pair or not isinstance(result[0], list | tuple) or not isinstance(result[1], Mapping):
        raise TypeError(f"{method} must return a list of messages and a dict of metrics, not {result!r:.80}")
    messages, metrics = result
    check_row_names(method, "metric", metrics)
    check_count(method, messages, agents)
    for message in messages:
        if not isinstance(message, Message) or not isinstance(message.edit, str):
            raise TypeError(f"{method} must return a Message per agent, with a string as edit, not {message!r:.80}")
        check_texts(f"{method} of a message's lines", message.lines)


def next_prompt(first_prompt: str | None, previous: str | None, message: Message, instruction: str) -> str:
    """Return one agent's prompt of a later turn: earlier prompt and answer, message and instruction, if given. The
    bundled policies were trained on this exact text, which a golden test fixes."""
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
