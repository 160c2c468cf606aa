"""The environment protocol: everything that the rest of the package knows about a kind of task.

For each joint action, `attempt` parses the responses once. If the attempt has a program, the sandbox executes it (equal
programs once). `outcome` computes reward, levels and metrics from attempt and report. If another turn follows, the
attempt's `answers`, `feedback` and `revisions` are the parts of the next prompts.

| an environment defines | |
|---|---|
| always | `roles`, `first_prompts`, `attempt`, `outcome`, `feedback` with `modes`, `revisions` |
| to read settings, to reject tasks | `from_config`, `check_task` |
| if it has a further ability | the methods of a class of `marl_ray.environments.abilities` |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from marl_ray.core.chat import Prompt
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.old_protocol import AdaptsOldClasses

if TYPE_CHECKING:
    from marl_ray.config.schema import Config


class Attempt(Protocol):
    """The parsed responses of one joint action. Each environment has a class of its own."""

    @property
    def program(self) -> Any | None:
        """The program to execute: a `marl_ray.sandbox.Program`, a tuple of programs, or None. An environment that
        `ExecutesPrograms` has programs of another type."""

    @property
    def answers(self) -> Sequence[str]:
        """The text that each agent sees as its own previous answer."""


A = TypeVar("A", bound=Attempt)


class Executor(Protocol):
    """An object that executes programs, such as the sandbox pool."""

    async def execute(self, programs: Sequence[Any]) -> list[Any]: ...


class BaseEnvironment(AdaptsOldClasses, ABC):
    """The part of an environment that does not depend on who plays the episodes: turns of prompts and answers
    (`Environment`), or programs (`marl_ray.environments.program_environment`)."""

    def __init__(self, num_agents: int) -> None:
        self.num_agents = num_agents

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the environment of a run. Raises UserError for unsupported settings."""
        return cls(config.num_agents)

    def check_task(self, task: Task) -> None:
        """Check a task before the run starts. Raises UserError if the environment does not support the task."""

    @abstractmethod
    def roles(self, task: Task) -> list[str]:
        """Return the distinct names of the agents, or of their parts of the answer, in prompts and feedback."""

    @abstractmethod
    def first_prompts(self, task: Task) -> Sequence[Prompt]:
        """Return the prompts of the first turn: each a text, or chat messages (`{"role": ..., "content": ...}`) that
        end with the agent's input."""


class Environment(BaseEnvironment, Generic[A]):
    """A kind of task. Lists have one entry per agent, in the order of `roles`. All methods are pure functions and raise
    on no response text. `report` is the report on the attempt's program, by default an `ExecutionReport`: a tuple of
    reports for a tuple of programs, None for no program."""

    modes: ClassVar[tuple[str, ...]] = ()
    """The external modes that `feedback` supports. `plain` and `expert_edits` need no support."""

    @abstractmethod
    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> A:
        """Parse one joint action. `last`: no turn follows, so single tests appear in no feedback."""

    @abstractmethod
    def outcome(self, attempt: A, report: Any) -> Outcome:
        """Return the verdict. Levels and metrics have the same names for every joint action."""

    @abstractmethod
    def feedback(self, attempt: A, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the feedback for an agent in a mode of `modes`, one fact per line."""

    @abstractmethod
    def revisions(self, task: Task) -> list[str]:
        """Return the closing instructions of later prompts. Each is complete by itself."""


def collect_programs(attempts: Sequence[Attempt]) -> list[Any]:
    """Return all programs of these attempts in order."""
    programs: list[Any] = []
    for attempt in attempts:
        programs += _as_tuple(attempt.program)
    return programs


def group_reports(attempts: Sequence[Attempt], reports: Sequence[Any]) -> list[Any]:
    """Return the `report` argument of `outcome` for each attempt, from the reports on `collect_programs(attempts)`."""
    remaining = iter(reports)
    grouped: list[Any] = []
    for attempt in attempts:
        of_attempt = tuple(islice(remaining, len(_as_tuple(attempt.program))))
        if isinstance(attempt.program, tuple):
            grouped.append(of_attempt)
        else:
            grouped.append(next(iter(of_attempt), None))
    return grouped


def _as_tuple(program: Any) -> tuple[Any, ...]:
    if isinstance(program, tuple):
        return program
    if program is None:
        return ()
    return (program,)
