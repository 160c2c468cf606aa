"""The common part of the environments: comparison of answers with the reference, evidence, votes over samples."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.abilities import ComparesSamples, DecidesSolved, all_passed
from marl_ray.environments.base import Environment
from marl_ray.plugins.math.answers import normal_form, number_of, same_answer, stated_answer
from marl_ray.plugins.math.options import MathConfig, check_packages
from marl_ray.plugins.math.symbolic import equality_program
from marl_ray.sandbox import ExecutionReport, Program

if TYPE_CHECKING:
    from marl_ray.config import Config


@dataclass(frozen=True, slots=True)
class MathAttempt:
    """One joint action. `stated` are the answers that the responses state. `settled` tells for each whether it equals
    the reference, None if a test of `program` tells: tests are of the different open answers `open`, in their order."""

    answers: tuple[str, ...]
    stated: tuple[str, ...]
    settled: tuple[bool | None, ...]
    open: tuple[str, ...]
    program: Program | None

    def right(self, report: ExecutionReport | None) -> list[bool]:
        """Return for each agent whether its answer equals the reference."""
        equal: dict[str, bool] = {}
        if report is not None:
            for answer, test in zip(self.open, report.tests, strict=True):
                equal[answer] = test.status == "pass"
        right = []
        for answer, verdict in zip(self.stated, self.settled, strict=True):
            if verdict is None:
                verdict = equal[answer]
            right.append(verdict)
        return right


@dataclass(frozen=True, slots=True)
class MathEvidence:
    """The final answers of a joint action in normal form, each with whether it is right, and whether the agents accept
    them: all verifiers say `right`, or all solvers agree. `said` are the answer or verdict of each agent, by role."""

    finals: tuple[tuple[str, bool], ...]
    accepted: bool
    said: tuple[tuple[str, str], ...]

    def data(self) -> dict[str, Any]:
        return {"said": dict(self.said), "accepted": self.accepted}

    def lines(self) -> list[str]:
        return [f"{role}: {answer or 'no answer'}" for role, answer in self.said]


class MathEnvironment(Environment[MathAttempt], DecidesSolved, ComparesSamples):
    """Problems with one short answer. Tasks have the field `reference`."""

    modes: ClassVar[tuple[str, ...]] = ("level_feedback", "level_passed", "passed")

    def __init__(self, num_agents: int, options: MathConfig | None = None) -> None:
        super().__init__(num_agents)
        self.options = options or MathConfig()

    @classmethod
    def from_config(cls, config: Config) -> Self:
        check_packages(config)
        return cls(config.num_agents, config.section(MathConfig))

    def check_task(self, task: Task) -> None:
        """Raise UserError if the task's answer is no number and answers are compared exactly."""
        if "reference" not in task.fields:
            raise UserError(f"task {task.id} has no reference answer: set dataset.type to math")
        if self.options.answers == "exact" and number_of(task.fields["reference"]) is None:
            raise UserError(
                f"task {task.id}: its answer {task.fields['reference']!r:.60} is no number: set math.answers to "
                "symbolic (install marl-ray[math]), or leave the task out"
            )

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> MathAttempt:
        reference = task.fields["reference"]
        stated = tuple(map(stated_answer, responses))
        settled = []
        undecided: dict[str, None] = {}
        for answer in stated:
            verdict = same_answer(reference, answer)
            if verdict is None and self.options.answers == "exact":
                verdict = False
            if verdict is None:
                undecided[answer] = None
            settled.append(verdict)
        program = None
        if undecided:
            program = equality_program(reference, tuple(undecided))
        return MathAttempt(tuple(responses), stated, tuple(settled), tuple(undecided), program)

    def outcome(self, attempt: MathAttempt, report: ExecutionReport | None) -> Outcome:
        if report is not None and report.infra_error:
            return Outcome(0.0, failure=report.infra_error)
        return self.judged(attempt, attempt.right(report))

    @abstractmethod
    def judged(self, attempt: MathAttempt, right: list[bool]) -> Outcome:
        """Return the outcome, with a `MathEvidence`. `right`: whether each agent's stated answer is right."""

    def solved(self, attempt: MathAttempt, outcome: Outcome, tests: str) -> bool:
        """Return for `visible` whether the agents accept the answer, which they can tell without the reference."""
        if tests == "visible":
            return _evidence(outcome).accepted
        return all_passed(self, outcome, tests)

    def feedback(self, attempt: MathAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        """Return the others' responses (level_feedback), or the truth (level_passed and passed)."""
        if mode == "level_passed":
            return [f"{level}: {value:g}" for level, value in outcome.levels.items()]
        if mode == "level_feedback":
            return self.heard(attempt, agent)
        if outcome.metrics["all_passed"]:
            return ["All levels passed"]
        return ["Not all levels passed"]

    @abstractmethod
    def heard(self, attempt: MathAttempt, agent: int) -> list[str]:
        """Return lines with the other agents' responses, for an agent's next prompt."""

    def sample_metrics(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Return the probabilities of a right answer by `majority`, the most frequent final answer, and by `best`, a
        final answer that the agents accept, or any if they accept none. Ties are broken at random."""
        votes: Counter[str] = Counter()
        is_right: dict[str, bool] = {}
        accepted: list[float] = []
        every: list[float] = []
        for outcome in outcomes:
            evidence = _evidence(outcome)
            for answer, right in evidence.finals:
                every.append(right)
                if evidence.accepted:
                    accepted.append(right)
                if answer:
                    votes[answer] += 1
                    is_right[answer] = right
        most = max(votes.values(), default=0)
        # No vote at all is a wrong answer.
        winners = [is_right[answer] for answer, count in votes.items() if count == most] or [False]
        return {"majority": fmean(winners), "best": fmean(accepted or every)}


def _evidence(outcome: Outcome) -> MathEvidence:
    assert isinstance(outcome.evidence, MathEvidence), "an outcome of this environment"
    return outcome.evidence


def final_answer(stated: str, right: bool) -> tuple[str, bool]:
    """Return an entry of `MathEvidence.finals`."""
    return normal_form(stated), right
