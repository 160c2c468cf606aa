"""A solver and testers. The solver answers first; the testers read the solution in the same turn and write tests of it. In
later turns the solver learns which of these tests it fails. Of N agents the last is the solver, all others are testers,
which answer at the same time; a single agent is a solver alone.

A test is valid if the reference solution passes it. The levels add up to the joint reward, at most 3.5 (2.0 for a solver
alone):

1. `solution`, 0.5: the function is there and returns a value, and the program compiles. Otherwise 2 and 4 are 0 too.
2. `tests`, 1.5 x the share of the problem's tests that the solution passes.
3. `valid`, 0.5 x the share of valid tests among the written tests, or among three if fewer were written.
4. `found`, 1.0: the valid tests, at least one, judge the solution correctly. At least one fails if one of the problem's
   tests fails; all pass if all of these pass.

The solver's own reward is 1 + 2 + 4, a tester's is 3 + 4. Both earn from a correct judgement, and a correct solution with
passing tests is worth the most to both, so no agent gains from a planted mistake. Several testers have their own 3 and 4,
whose means enter the joint reward and the solver's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.base import Environment
from marl_ray.environments.code_generation.extraction import extract_function, strip_fence
from marl_ray.environments.code_generation.feedback import diagnose
from marl_ray.environments.execution import SandboxSlice, execution_counts, visible_tests
from marl_ray.environments.solver_tester import prompts
from marl_ray.environments.solver_tester.attempt import SolutionAttempt, solution_attempt
from marl_ray.environments.solver_tester.feedback import MODES, WrittenTest, evidence_from, evidence_of, feedback_lines
from marl_ray.sandbox import ExecutionReport

if TYPE_CHECKING:
    from marl_ray.config import Config

SOLUTION, TESTS, VALID, FOUND = 0.5, 1.5, 0.5, 1.0


class SolverTester(Environment[SolutionAttempt]):
    """Solver and testers; see the module for rewards.

    Tasks have the fields `entry_point`, `tests` (see `Program.tests`) and `reference`, a program. `count_untrusted`: see
    `SandboxConfig`. `sandbox_slice`: the problem's tests that feedback may mention, see `ExternalConfig`.
    """

    modes = MODES

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents)
        if num_agents < 1:
            raise ValueError(f"num_agents must be at least 1, not {num_agents}")
        self.testers = num_agents - 1
        self._count_untrusted = count_untrusted
        self._slice = sandbox_slice

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(config.num_agents, config.sandbox.count_untrusted, config.external.sandbox_slice)

    def check_task(self, task: Task) -> None:
        """Check that the task has a reference solution."""
        if "reference" not in task.fields:
            raise UserError(
                f"task {task.id} has no reference solution: set dataset.type to solver_tester, or another environment"
            )

    def roles(self, task: Task) -> list[str]:
        return prompts.role_names(self.testers)

    def order(self, task: Task) -> list[list[int]]:
        """Return the solver first, then all testers."""
        return [[self.testers], list(range(self.testers))] if self.testers else [[0]]

    def first_prompts(self, task: Task) -> list[str]:
        return prompts.first_prompts(task.prompt, task.fields["entry_point"], self.testers)

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Mapping[int, str]) -> str:
        answer = answers[self.testers]
        return prompts.with_solution(
            extract_function(answer, task.fields["entry_point"]).code or strip_fence(answer), prompt
        )

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["entry_point"], self.testers)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> SolutionAttempt:
        return solution_attempt(task, responses, visible_tests(self._slice, last))

    def outcome(self, attempt: SolutionAttempt, report: tuple[ExecutionReport, ...]) -> Outcome:
        """Return the rewards by levels, from the reports on solution and reference."""
        evidence = evidence_from(attempt.written, report)
        failure = next((one.infra_error for one in report if one.infra_error), None)
        if failure:
            return Outcome(0.0, evidence=evidence, failure=failure)
        own = evidence.report
        runs = attempt.part.defined and own.syntax_error is None
        passed = own.passed if self._count_untrusted else own.trusted_passed
        rate = passed / own.total if runs and own.total else 0.0
        valid = [
            sum(test.valid for test in tests) / max(prompts.TESTS_PER_WRITER, len(tests)) for tests in evidence.written
        ]
        correct = [float(runs and _judge_correctly(tests, rate == 1.0)) for tests in evidence.written]

        levels = {"solution": SOLUTION * runs, "tests": TESTS * rate}
        metrics = {
            "solution_defined": float(attempt.part.defined),
            "syntax_ok": float(own.syntax_error is None),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
        }
        if not self.testers:
            return Outcome(math.fsum(levels.values()), levels, metrics, execution_counts(own), evidence=evidence)
        solved = math.fsum(levels.values())
        levels |= {"valid": VALID * fmean(valid), "found": FOUND * fmean(correct)}
        metrics["tests_written"] = fmean(map(len, evidence.written))
        metrics["tests_valid_rate"] = fmean(valid)
        metrics["mistakes_found"] = float(any(test.exposes_bug for tests in evidence.written for test in tests))
        metrics["found_truth"] = fmean(correct)
        rewards = [VALID * v + FOUND * t for v, t in zip(valid, correct, strict=True)]
        rewards.append(solved + levels["found"])
        reward = math.fsum(levels.values())
        return Outcome(reward, levels, metrics, execution_counts(own), tuple(rewards), evidence=evidence)

    def feedback(self, attempt: SolutionAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        evidence = evidence_of(outcome)
        diagnosis = diagnose(attempt.solution, evidence.report, self._slice)
        return feedback_lines(mode, diagnosis, evidence.written, agent)

    def previous_answers(self, attempt: SolutionAttempt) -> list[str]:
        """Return each tester's parsed tests and the solver's function, or the whole response without them."""
        return attempt.answers

    def question(self, task: Task, attempt: SolutionAttempt) -> str:
        return prompts.question(task.prompt, self.roles(task), attempt.answers)


def _judge_correctly(tests: Sequence[WrittenTest], right: bool) -> bool:
    """Return whether the valid tests judge the solution like the problem's tests."""
    return any(test.valid for test in tests) and any(test.exposes_bug for test in tests) != right
