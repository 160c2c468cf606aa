"""A minimal environment without programs: agents earn by the length of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.base import Environment


class Said:
    program = None

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.answers = self.texts


class Talk(Environment[Said]):
    """An environment whose reward is the number of characters of all texts."""

    modes = ("passed",)

    def roles(self, task: Task) -> list[str]:
        return [f"speaker {agent}" for agent in range(self.num_agents)]

    def first_prompts(self, task: Task) -> list[str]:
        return [f"{task.prompt} You are {role}." for role in self.roles(task)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Said:
        return Said(responses)

    def outcome(self, attempt: Said, report: Any) -> Outcome:
        return Outcome(float(sum(map(len, attempt.texts))))

    def feedback(self, attempt: Said, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return [f"{outcome.reward:g} characters"]

    def revisions(self, task: Task) -> list[str]:
        return ["Say more."] * self.num_agents


TASK = Task("t", "Talk.\n", {})
