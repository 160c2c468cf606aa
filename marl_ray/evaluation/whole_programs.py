"""Scores of programs from other systems, which are run as they are, with all of their functions and statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.execution import CodeEnvironment, ExecutionEvidence, execution_counts
from marl_ray.sandbox import ExecutionReport, Program


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """The attempt of one whole program."""

    program: Program

    @property
    def answers(self) -> list[str]:
        return [self.program.source]


class WholePrograms(CodeEnvironment[WholeProgram]):
    """One answer is one program. Its reward is 1 if it passes all tests, else 0. Tasks have the fields `tests` and
    `entry_point`."""

    def check_task(self, task: Task) -> None:
        """Raise UserError unless a whole program can be run with the task's tests."""
        if not {"tests", "entry_point"} <= task.fields.keys():
            raise UserError(f"task {task.id} has no tests of whole programs: give completions in place of program")

    def roles(self, task: Task) -> list[str]:
        return ["program"]

    def first_prompts(self, task: Task) -> list[str]:
        return [task.prompt]

    def revisions(self, task: Task) -> list[str]:
        return [""]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> WholeProgram:
        (source,) = responses
        return WholeProgram(Program(source, task.fields["tests"], task.fields["entry_point"], prompt=task.prompt))

    def outcome(self, attempt: WholeProgram, report: ExecutionReport) -> Outcome:
        evidence = ExecutionEvidence(report)
        if report.infra_error:
            return Outcome(0.0, evidence=evidence, failure=report.infra_error)
        rate = self._pass_rate(report, report.syntax_error is None)
        passed = float(rate == 1.0)
        metrics = {"syntax_ok": float(report.syntax_error is None), "tests_passed_rate": rate, "all_passed": passed}
        return Outcome(passed, {}, metrics, execution_counts(report), evidence=evidence)

    def feedback(self, attempt: WholeProgram, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return []
