"""Solver and testers: the last agent solves a problem, all others then read the solution and write tests of it.

docs/reference/environments/solver_tester.md describes tests, rewards and feedback. A correct solution with passing
tests is worth the most to both roles, so no agent gains from a planted mistake.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.abilities import AnswersInOrder, AsksExpert
from marl_ray.environments.code_generation.extraction import extract_function, strip_fence
from marl_ray.environments.code_generation.feedback import FEEDBACK_BY_MODE, diagnose
from marl_ray.environments.code_generation.prompts import numbered_names
from marl_ray.environments.execution import CodeEnvironment, SandboxSlice, execution_counts
from marl_ray.plugins.solver_tester import prompts
from marl_ray.plugins.solver_tester.attempt import SolutionAttempt, solution_attempt
from marl_ray.plugins.solver_tester.feedback import SolverEvidence, evidence_from, feedback_lines
from marl_ray.sandbox import ExecutionReport

# The largest reward of each level.
SOLUTION = 0.5
TESTS = 1.5
VALID = 0.5
FOUND = 1.0


class SolverTester(CodeEnvironment[SolutionAttempt], AnswersInOrder, AsksExpert):
    """Solver and testers. A single agent is a solver alone. Tasks have the fields `entry_point`, `tests` (see
    `Program.tests`) and `reference`, a program."""

    modes = tuple(FEEDBACK_BY_MODE)

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents, count_untrusted, sandbox_slice)
        self.testers = num_agents - 1

    def check_task(self, task: Task) -> None:
        """Raise UserError unless the task has a reference solution."""
        if "reference" not in task.fields:
            raise UserError(
                f"task {task.id} has no reference solution: set dataset.type to solver_tester, or another environment"
            )

    def roles(self, task: Task) -> list[str]:
        return [*numbered_names("tests", self.testers), "solution"]

    def order(self, task: Task) -> list[list[int]]:
        """Return the solver first, then all testers."""
        if not self.testers:
            return [[0]]
        return [[self.testers], list(range(self.testers))]

    def first_prompts(self, task: Task) -> list[str]:
        return prompts.first_prompts(task.prompt, task.fields["entry_point"], self.testers)

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Mapping[int, str]) -> str:
        answer = answers[self.testers]
        function = extract_function(answer, task.fields["entry_point"])
        solution = function.code or strip_fence(answer)
        return f"Another agent's solution:\n{solution.strip() or '(empty)'}\n\n{prompt}"

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["entry_point"], self.testers)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> SolutionAttempt:
        return solution_attempt(task, responses, self._visible(last))

    def outcome(self, attempt: SolutionAttempt, report: tuple[ExecutionReport, ...]) -> Outcome:
        """Return the rewards by levels, from the reports on solution and reference."""
        evidence = evidence_from(attempt.written, report)
        for execution in report:
            if execution.infra_error:
                return Outcome(0.0, evidence=evidence, failure=execution.infra_error)
        own = evidence.report
        runs = attempt.part.defined and own.syntax_error is None
        rate = self._pass_rate(own, runs)
        valid: list[float] = []
        truth = []
        found = False
        for tests in evidence.written:
            asked = max(prompts.TESTS_PER_WRITER, len(tests))
            valid_tests = sum(test.valid for test in tests)
            valid.append(valid_tests / asked)
            exposes_bug = any(test.exposes_bug for test in tests)
            found = found or exposes_bug
            # Valid tests should judge the solution like the problem's tests.
            judges_right = valid_tests > 0 and exposes_bug != (rate == 1.0)
            truth.append(float(runs and judges_right))
        # The more tests a wrong solution passes, the harder its mistake is to find. A solution that fails everything
        # pays nothing: any valid test finds that, and otherwise solver and testers would earn from a constant.
        correct = [rate * right for right in truth]
        levels = {"solution": SOLUTION * runs, "tests": TESTS * rate}
        metrics = {
            "solution_defined": float(attempt.part.defined),
            "syntax_ok": float(own.syntax_error is None),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
        }
        solved = math.fsum(levels.values())
        if not self.testers:
            return Outcome(solved, levels, metrics, execution_counts(own), evidence=evidence)
        levels |= {"valid": VALID * fmean(valid), "found": FOUND * fmean(correct)}
        metrics["tests_written"] = fmean(map(len, evidence.written))
        metrics["tests_valid_rate"] = fmean(valid)
        metrics["mistakes_found"] = float(found)
        metrics["found_truth"] = fmean(truth)
        rewards = []
        for valid_share, right in zip(valid, correct, strict=True):
            rewards.append(VALID * valid_share + FOUND * right)
        rewards.append(solved + levels["found"])
        return Outcome(
            math.fsum(levels.values()),
            levels,
            metrics,
            execution_counts(own),
            tuple(rewards),
            evidence=evidence,
        )

    def feedback(self, attempt: SolutionAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        assert isinstance(outcome.evidence, SolverEvidence), "an outcome of this environment"
        diagnosis = diagnose(attempt.solution, outcome.evidence.report, self._slice)
        return feedback_lines(mode, diagnosis, outcome.evidence.written, agent)

    def question(self, task: Task, attempt: SolutionAttempt) -> str:
        return prompts.question(task.prompt, self.roles(task), attempt.answers)
