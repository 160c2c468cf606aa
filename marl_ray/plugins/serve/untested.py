"""An environment for requests without tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.base import Environment
from marl_ray.environments.text_environment import TextAttempt


class Untested(Environment[TextAttempt]):
    """Another environment's first turn, with its roles, prompts and order, without programs and rewards."""

    def __init__(self, environment: Environment[Any]) -> None:
        super().__init__(environment.num_agents)
        self._environment = environment

    def roles(self, task: Task) -> list[str]:
        return self._environment.roles(task)

    def first_prompts(self, task: Task) -> list[Any]:
        return list(self._environment.first_prompts(task))

    def order(self, task: Task) -> list[list[int]]:
        return self._environment.order(task)

    def prompt_after(self, task: Task, agent: int, prompt: Any, answers: Mapping[int, str]) -> Any:
        return self._environment.prompt_after(task, agent, prompt, answers)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> TextAttempt:
        return TextAttempt(tuple(responses))

    def outcome(self, attempt: TextAttempt, report: Any) -> Outcome:
        return Outcome(0.0)

    def feedback(self, attempt: TextAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return []

    def previous_answers(self, attempt: TextAttempt) -> list[str]:
        return list(attempt.answers)

    def revisions(self, task: Task) -> list[str]:
        return self._environment.revisions(task)
