"""The environment: what a kind of task means, and the one protocol that everything else knows of it.

The way of one joint action: `attempt` parses its responses once; where the attempt has a program, the sandbox executes
it (equal programs once); `outcome` makes reward, levels and metrics of attempt and report; where a turn remains,
`feedback`, `previous_answers` and `revisions` are what the next prompts are composed of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from marl_ray.core.episode import Outcome, Task

if TYPE_CHECKING:
    from marl_ray.config import Config


class Attempt(Protocol):
    """What an environment made of one joint action's texts; its own class knows more."""

    @property
    def program(self) -> Any | None:
        """What `Environment.execute` takes: by default a `marl_ray.sandbox.Program`, or a tuple of several. None where
        nothing is to be executed."""


A = TypeVar("A", bound=Attempt)


class Executor(Protocol):
    """Runs programs: the sandbox, as those who play episodes know it."""

    async def execute(self, programs: Sequence[Any]) -> list[Any]: ...


class Environment(ABC, Generic[A]):
    """A kind of task. Lists are one entry an agent, in the order of `roles`.

    Everything is a function of its arguments, and nothing raises on what a response says. `report` is what
    `execute` made of the attempt's program, by default the sandbox's ExecutionReport; a tuple where that is a tuple of
    programs, None where there was none to execute.
    """

    modes: ClassVar[tuple[str, ...]] = ()
    """The external modes that `feedback` has words for. `plain` and `expert_edits` need none."""

    def __init__(self, num_agents: int) -> None:
        self.num_agents = num_agents

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The environment of a run. Raises UserError for settings that it cannot serve."""
        return cls(config.num_agents)

    def check_task(self, task: Task) -> None:
        """Asked of every task before anything starts. Raises UserError for one that it cannot serve."""

    @abstractmethod
    def roles(self, task: Task) -> list[str]:
        """What each agent, or its part of the answer, is called in prompts and feedback; no two alike."""

    @abstractmethod
    def first_prompts(self, task: Task) -> list[str]:
        """The first turn's prompts."""

    def order(self, task: Task) -> list[list[int]]:
        """Who answers when within a turn: agents by their places in `roles`, those of one list at the same time, those
        of a later list after them. By default all at the same time."""
        return [list(range(self.num_agents))]

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Mapping[int, str]) -> str:
        """The prompt of an agent that answers after others of the same turn: `prompt`, which it would read if all
        answered at the same time, and `answers`, all of theirs by agent."""
        roles = self.roles(task)
        heard = (f"{roles[other]} has answered:\n{answer.strip()}\n\n" for other, answer in sorted(answers.items()))
        return "".join(heard) + prompt

    @abstractmethod
    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> A:
        """Parse one joint action. `last`: no turn follows, so that nobody will be told of the tests one by one."""

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        """A report on each program of attempts and probes. By default the sandbox's; another for what it cannot
        execute, as a question to a judge. Whatever it waits for has a deadline."""
        return await sandbox.execute(programs)

    @abstractmethod
    def outcome(self, attempt: A, report: Any) -> Outcome:
        """The verdict. Levels and metrics have the same names for every joint action."""

    @abstractmethod
    def feedback(self, attempt: A, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """What the agent is told of the outcome in this mode, one of `modes`; one fact a line."""

    @abstractmethod
    def previous_answers(self, attempt: A) -> list[str]:
        """What each agent is shown as its own previous answer."""

    @abstractmethod
    def revisions(self, task: Task) -> list[str]:
        """Closing instructions of later turns; each stands alone."""

    def question(self, task: Task, attempt: A) -> str:
        """What an expert is asked: edits by role, as one JSON object of strings."""
        roles, answers = self.roles(task), self.previous_answers(attempt)
        parts = "\n\n".join(f"{role}:\n{answer}" for role, answer in zip(roles, answers, strict=True))
        return QUESTION.format(problem=task.prompt.strip(), answers=parts, names=", ".join(roles))

    def probes(self, attempt: A, report: Any) -> list[Any]:
        """Further programs whose reports say what the parts of this one are worth (`output.probe_helpers`)."""
        return []

    def probed(self, attempt: A, report: Any, reports: Sequence[Any]) -> dict[str, float]:
        """Metrics from the reports of `probes`."""
        return {}


def collect_programs(attempts: Sequence[Attempt]) -> list[Any]:
    """All programs of these attempts, in order."""
    return [program for attempt in attempts for program in _several(attempt.program)]


def group_reports(attempts: Sequence[Attempt], reports: Sequence[Any]) -> list[Any]:
    """What `outcome` is to be given for each attempt, of the reports on `collect_programs` them."""
    left = iter(reports)
    found: list[Any] = []
    for program in (attempt.program for attempt in attempts):
        of_program = tuple(next(left) for _ in _several(program))
        found.append(of_program if isinstance(program, tuple) else next(iter(of_program), None))
    return found


def _several(program: Any) -> tuple[Any, ...]:
    return program if isinstance(program, tuple) else () if program is None else (program,)


QUESTION = """\
A problem is answered in parts, and whoever writes a part does not see the others.

Problem:
{problem}

Parts:
{answers}

Suggest an edit for each of these parts: {names}. Reply with one JSON object and nothing else. Its keys are the parts' \
names, its values are strings: a short suggestion, or the corrected part."""
