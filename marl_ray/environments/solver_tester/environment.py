"""A solver and a test writer. The solver answers first; the test writer reads the solution, in the same turn, and
writes tests of it; in a later turn the solver hears which of them it fails. Of N agents the last is the solver, all
others write tests, at the same time; a single agent is a solver alone.

A test is valid if the reference solution passes it. Levels, which add up to the joint reward, at most 3.5 (2.0 for a
solver alone):

1. `solution`, 0.5: the function is there and returns a value, and the program compiles; else 2 and 4 are 0 too.
2. `tests`, 1.5 x the share of the problem's own tests that the solution passes.
3. `valid`, 0.5 x the share of valid tests among those that were written, or of three where fewer were.
4. `found`, 1.0: the valid tests, at least one, tell the truth about the solution: one of them fails where one of the
   problem's own does; all pass where all of these do.

Rewards of their own: the solver earns 1, 2 and 4, a test writer 3 and 4. Both earn by what is found, and a right
solution with tests that pass is worth the most to both, so that nobody gains by a mistake that is there to be found.
With several writers 3 and 4 are each writer's own, and their means are in the joint reward and the solver's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.base import Environment
from marl_ray.environments.code_generation.attempt import CodeReader
from marl_ray.environments.code_generation.diagnosis import SandboxSlice, diagnose
from marl_ray.environments.code_generation.evidence import counts_of
from marl_ray.environments.code_generation.extraction import clean, contribution
from marl_ray.environments.solver_tester import prompts
from marl_ray.environments.solver_tester.attempt import SolutionAttempt, solution_attempt
from marl_ray.environments.solver_tester.feedback import MODES, words
from marl_ray.environments.solver_tester.findings import WrittenTest, findings, findings_of
from marl_ray.sandbox import ExecutionReport

if TYPE_CHECKING:
    from marl_ray.config import Config

SOLUTION, TESTS, VALID, FOUND = 0.5, 1.5, 0.5, 1.0


class SolverTester(Environment[SolutionAttempt]):
    """See the module. Tasks have the fields `entry_point`, `tests` (see `Program.tests`) and `reference`, a program.

    `count_untrusted`: see `SandboxConfig`; `sandbox_slice`, the problem's tests that feedback may tell of: see
    `ExternalConfig`.
    """

    modes = MODES

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents)
        if num_agents < 1:
            raise ValueError(f"num_agents must be at least 1, not {num_agents}")
        self.writers = num_agents - 1
        self._count_untrusted = count_untrusted
        self._slice = sandbox_slice
        self._reader = CodeReader()

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(config.num_agents, config.sandbox.count_untrusted, config.external.sandbox_slice)

    def check_task(self, task: Task) -> None:
        """There is a reference solution."""
        if "reference" not in task.fields:
            raise UserError(
                f"task {task.id} has no reference solution: set dataset.type to solver_tester, or another environment"
            )

    def roles(self, task: Task) -> list[str]:
        return prompts.role_names(self.writers)

    def order(self, task: Task) -> list[list[int]]:
        """The solver, then all who write tests."""
        return [[self.writers], list(range(self.writers))] if self.writers else [[0]]

    def first_prompts(self, task: Task) -> list[str]:
        return prompts.first_prompts(task.prompt, task.fields["entry_point"], self.writers)

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Mapping[int, str]) -> str:
        answer = answers[self.writers]
        return prompts.with_solution(contribution(answer, task.fields["entry_point"]).code or clean(answer), prompt)

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["entry_point"], self.writers)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> SolutionAttempt:
        visible = None if last or self._slice == "all" else self._slice
        return solution_attempt(self._reader, task, responses, visible)

    def outcome(self, attempt: SolutionAttempt, report: tuple[ExecutionReport, ...]) -> Outcome:
        """Rewards by levels, from the executions of solution and reference."""
        found = findings(attempt.written, report)
        failure = next((one.infra_error for one in report if one.infra_error), None)
        if failure:
            return Outcome(0.0, evidence=found, failure=failure)
        own = found.report
        runs = attempt.part.defined and own.syntax_error is None
        passed = own.passed if self._count_untrusted else own.trusted_passed
        rate = passed / own.total if runs and own.total else 0.0
        valid = [sum(test.valid for test in tests) / max(prompts.WANTED, len(tests)) for tests in found.written]
        truth = [float(runs and _tells_the_truth(tests, rate == 1.0)) for tests in found.written]

        levels = {"solution": SOLUTION * runs, "tests": TESTS * rate}
        metrics = {
            "solution_defined": float(attempt.part.defined),
            "syntax_ok": float(own.syntax_error is None),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
        }
        if not self.writers:
            return Outcome(math.fsum(levels.values()), levels, metrics, counts_of(own), evidence=found)
        solved = math.fsum(levels.values())
        levels |= {"valid": VALID * fmean(valid), "found": FOUND * fmean(truth)}
        metrics["tests_written"] = fmean(map(len, found.written))
        metrics["tests_valid_rate"] = fmean(valid)
        metrics["mistakes_found"] = float(any(test.finds for tests in found.written for test in tests))
        metrics["found_truth"] = fmean(truth)
        rewards = [VALID * v + FOUND * t for v, t in zip(valid, truth, strict=True)]
        rewards.append(solved + levels["found"])
        reward = math.fsum(levels.values())
        return Outcome(reward, levels, metrics, counts_of(own), tuple(rewards), evidence=found)

    def feedback(self, attempt: SolutionAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        found = findings_of(outcome)
        return words(mode, diagnose(attempt.solution, found.report, self._slice), found.written, agent)

    def previous_answers(self, attempt: SolutionAttempt) -> list[str]:
        """Each writer's tests as they were understood, and the solver's function."""
        return attempt.answers

    def question(self, task: Task, attempt: SolutionAttempt) -> str:
        return prompts.question(task.prompt, self.roles(task), attempt.answers)


def _tells_the_truth(tests: Sequence[WrittenTest], right: bool) -> bool:
    """The valid ones judge the solution as the problem's own tests do."""
    return any(test.valid for test in tests) and any(test.finds for test in tests) != right
