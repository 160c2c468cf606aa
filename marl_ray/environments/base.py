"""The environment: what a kind of task means, and the one protocol that everything else knows of it.

The way of one joint action: `attempt` parses its responses once; where the attempt has a program, the sandbox executes
it (equal programs once); `outcome` makes reward, levels and metrics of attempt and report; where a turn remains,
`feedback`, `previous_answers` and `revisions` are what the next prompts are composed of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from marl_ray.core.tree import Outcome, Task


class Attempt(Protocol):
    """What an environment made of one joint action's texts; its own class knows more."""

    @property
    def program(self) -> Any | None:
        """What is to be executed, as the environment's executor takes it; None where nothing is."""


A = TypeVar("A", bound=Attempt)


class Environment(ABC, Generic[A]):
    """A kind of task. Lists are one entry an agent, in the order of `roles`."""

    @abstractmethod
    def roles(self, task: Task) -> list[str]:
        """What each agent is called in prompts and feedback."""

    @abstractmethod
    def first_prompts(self, task: Task) -> list[str]:
        """The first turn's prompts."""

    @abstractmethod
    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> A:
        """Parse one joint action. `last`: no turn follows, so that nobody will be told of the tests one by one."""

    @abstractmethod
    def outcome(self, attempt: A, report: Any | None) -> Outcome:
        """The verdict. `report` is the executor's on the attempt's program, None where there was none to run."""

    @abstractmethod
    def feedback(self, attempt: A, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """What the agent is told of the outcome in this external mode, one fact a line."""

    @abstractmethod
    def previous_answers(self, attempt: A) -> list[str]:
        """What each agent is shown as its own previous answer."""

    @abstractmethod
    def joint_answer(self, attempt: A) -> str:
        """All answers as one text, as an expert reads them."""

    @abstractmethod
    def revisions(self, task: Task) -> list[str]:
        """Closing instructions of later turns; each stands alone."""

    def probes(self, attempt: A, report: Any | None) -> list[Any]:
        """Further programs whose reports say what the parts of this one are worth (`output.probe_helpers`)."""
        return []

    def probed(self, attempt: A, report: Any | None, reports: Sequence[Any]) -> dict[str, float]:
        """Metrics from the reports of `probes`."""
        return {}
