"""Environments without programs: the reward is computed from the texts alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from marl_ray.core.episode import Outcome
from marl_ray.environments.abilities import WithoutPrograms
from marl_ray.environments.base import Environment


@dataclass(frozen=True)
class TextAttempt:
    """The answers of one joint action, as the agents see them in later prompts. Environments add parsed values."""

    answers: tuple[str, ...]

    @property
    def program(self) -> None:
        """None: nothing is executed."""


T = TypeVar("T", bound=TextAttempt)


class TextEnvironment(Environment[T], WithoutPrograms):
    """An environment without programs, whose outcomes have the metric `all_passed`."""

    modes: ClassVar[tuple[str, ...]] = ("level_feedback", "level_passed", "passed")

    def feedback(self, attempt: T, outcome: Outcome, mode: str, agent: int) -> list[str]:
        if mode == "passed":
            if outcome.metrics["all_passed"]:
                return ["All levels passed"]
            return ["Not all levels passed"]
        return self.facts(attempt, outcome, mode, agent)

    @abstractmethod
    def facts(self, attempt: T, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the feedback in the modes level_feedback and level_passed, one fact per line."""
