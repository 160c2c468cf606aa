"""The environment protocol: everything that the rest of the package knows about a kind of task.

For each joint action, `attempt` parses the responses once. If the attempt has a program, the sandbox executes it (equal
programs once). `outcome` computes reward, levels and metrics from attempt and report. If another turn follows,
`feedback`, `previous_answers` and `revisions` are the parts of the next prompts.

| an environment defines | |
|---|---|
| always | `roles`, `first_prompts`, `attempt`, `outcome`, `feedback` with `modes`, `previous_answers`, `revisions` |
| to read settings, to reject tasks | `from_config`, `check_task` |
| agents that answer one after another | `order`, `prompt_after` |
| programs that the sandbox cannot execute | `execute`, `close` |
| rewards or metrics from further programs | `probes`, `probed` or `probed_outcome`, `pays_probes` |
| another rule or wording | `solved` (`external.stop`), `question` (mode `expert_edits`) |
| more measures of cooperation | `runs_programs`, `interchangeable_agents` |

The last two are values and no types, because an environment around another one may take them from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from marl_ray.core.chat import Prompt, prepend
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError

if TYPE_CHECKING:
    from marl_ray.config.schema import Config


class Attempt(Protocol):
    """The parsed responses of one joint action. Each environment has a class of its own."""

    @property
    def program(self) -> Any | None:
        """The argument of `Environment.execute`: by default a `marl_ray.sandbox.Program`, or a tuple of programs, or
        None."""


A = TypeVar("A", bound=Attempt)


class Executor(Protocol):
    """An object that executes programs, such as the sandbox pool."""

    async def execute(self, programs: Sequence[Any]) -> list[Any]: ...


class BaseEnvironment(ABC):
    """The part of an environment that does not depend on who plays the episodes: turns of prompts and answers
    (`Environment`), or programs (`marl_ray.environments.program_environment`)."""

    def __init__(self, num_agents: int) -> None:
        self.num_agents = num_agents

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Return the environment of a run. Raises UserError for unsupported settings."""
        return cls(config.num_agents)

    def check_task(self, task: Task) -> None:  # noqa: B027 (optional, without a check by default)
        """Check a task before the run starts. Raises UserError if the environment does not support the task."""

    @abstractmethod
    def roles(self, task: Task) -> list[str]:
        """Return the distinct names of the agents, or of their parts of the answer, in prompts and feedback."""

    @abstractmethod
    def first_prompts(self, task: Task) -> Sequence[Prompt]:
        """Return the prompts of the first turn: each a text, or chat messages (`{"role": ..., "content": ...}`) that
        end with the agent's input."""

    def order(self, task: Task) -> list[list[int]]:
        """Return the order in which agents answer within a turn: agents (indices into `roles`) of one list answer
        simultaneously, agents of later lists afterwards. By default all agents answer simultaneously."""
        return [list(range(self.num_agents))]

    async def close(self) -> None:  # noqa: B027 (optional, like check_task)
        """Release the resources of the environment at the end of a run. By default there are none."""


class Environment(BaseEnvironment, Generic[A]):
    """A kind of task. Lists have one entry per agent, in the order of `roles`. All methods are pure functions and raise
    on no response text. `report` is the result of `execute` on the attempt's program, by default an `ExecutionReport`:
    a tuple of reports for a tuple of programs, None for no program."""

    modes: ClassVar[tuple[str, ...]] = ()
    """The external modes that `feedback` supports. `plain` and `expert_edits` need no support."""

    interchangeable_agents: ClassVar[bool] = False
    """Whether prompts of the first turn differ in nothing but the agents' names, and the reward does not depend on who
    gives an answer. Answers of one agent may then take the places of all agents (docs/explanation/cooperation.md)."""

    runs_programs: ClassVar[bool] = True
    """Whether attempts may have programs. If not, rewards are computed from the responses alone, and training runs
    measure cooperation from recombined answers without an execution."""

    pays_probes: bool = False
    """Whether rewards depend on probes, so that every attempt is probed."""

    def prompt_after(self, task: Task, agent: int, prompt: Any, answers: Mapping[int, str]) -> Prompt:
        """Return the prompt of an agent that answers after other agents of the same turn. `prompt`, a `Prompt`, is the
        agent's prompt without an order; `answers` maps agents to their answers of this turn."""
        roles = self.roles(task)
        earlier = (f"{roles[other]} has answered:\n{answer.strip()}\n\n" for other, answer in sorted(answers.items()))
        return prepend("".join(earlier), prompt)

    @abstractmethod
    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> A:
        """Parse one joint action. `last`: no turn follows, so single tests appear in no feedback."""

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        """Return one report per program of attempts and probes, by default from the sandbox. Override this method for
        programs that the sandbox cannot execute, such as questions to a judge model. Every wait in it needs a
        deadline."""
        return await sandbox.execute(programs)

    @abstractmethod
    def outcome(self, attempt: A, report: Any) -> Outcome:
        """Return the verdict. Levels and metrics have the same names for every joint action."""

    @abstractmethod
    def feedback(self, attempt: A, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the feedback for an agent in a mode of `modes`, one fact per line."""

    @abstractmethod
    def previous_answers(self, attempt: A) -> list[str]:
        """Return the text that each agent sees as its own previous answer."""

    @abstractmethod
    def revisions(self, task: Task) -> list[str]:
        """Return the closing instructions of later prompts. Each is complete by itself."""

    def solved(self, attempt: A, outcome: Outcome, tests: str) -> bool:
        """Return whether a joint action passes the `visible` tests, which feedback may mention, or `all` tests, so that
        its branch may end (`external.stop`). By default both are the metric `all_passed`. Raises UserError without
        it."""
        if "all_passed" not in outcome.metrics:
            raise UserError(
                f"{type(self).__name__} reports no metric all_passed, which external.stop {tests} reads: set it to "
                "never, or override Environment.solved"
            )
        return outcome.metrics["all_passed"] == 1.0

    def question(self, task: Task, attempt: A) -> str:
        """Return the question to an expert, who replies with a JSON object of edits by role."""
        roles = self.roles(task)
        answers = labelled_answers(roles, self.previous_answers(attempt))
        return QUESTION.format(problem=task.prompt.strip(), answers=answers, names=", ".join(roles))

    def probes(self, attempt: A, report: Any) -> list[Any]:
        """Return further programs, whose reports show the value of each agent's part (see `output.probe_helpers` and
        `pays_probes`)."""
        return []

    def probed(self, attempt: A, report: Any, reports: Sequence[Any]) -> dict[str, float]:
        """Return metrics from the reports of `probes`."""
        return {}

    def probed_outcome(self, attempt: A, report: Any, outcome: Outcome, reports: Sequence[Any]) -> Outcome:
        """Return the outcome after the probes: by default with the metrics of `probed`."""
        return replace(outcome, metrics={**outcome.metrics, **self.probed(attempt, report, reports)})


def labelled_answers(roles: Sequence[str], answers: Sequence[str]) -> str:
    """Return all answers in one text, each under its role."""
    return "\n\n".join(f"{role}:\n{answer}" for role, answer in zip(roles, answers, strict=True))


def collect_programs(attempts: Sequence[Attempt]) -> list[Any]:
    """Return all programs of these attempts in order."""
    return [program for attempt in attempts for program in _as_tuple(attempt.program)]


def group_reports(attempts: Sequence[Attempt], reports: Sequence[Any]) -> list[Any]:
    """Return the `report` argument of `outcome` for each attempt, from the reports on `collect_programs(attempts)`."""
    remaining = iter(reports)
    grouped: list[Any] = []
    for attempt in attempts:
        own = tuple(next(remaining) for _ in _as_tuple(attempt.program))
        grouped.append(own if isinstance(attempt.program, tuple) else next(iter(own), None))
    return grouped


def _as_tuple(program: Any) -> tuple[Any, ...]:
    return program if isinstance(program, tuple) else () if program is None else (program,)


QUESTION = """\
A problem is answered in parts, and whoever writes a part does not see the others.

Problem:
{problem}

Parts:
{answers}

Suggest an edit for each of these parts: {names}. Reply with one JSON object and nothing else. Its keys are the parts' \
names, its values are strings: a short suggestion, or the corrected part."""
