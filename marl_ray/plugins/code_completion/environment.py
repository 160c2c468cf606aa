"""Code completion, for ClassEval: agents write disjoint methods of a class, which are merged into one program.

docs/reference/environments/code_completion.md describes the assignment of methods, rewards and feedback.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.abilities import AsksExpert
from marl_ray.environments.execution import (
    CodeEnvironment,
    ExecutionEvidence,
    SandboxSlice,
    execution_counts,
    report_of,
)
from marl_ray.plugins.code_completion import prompts
from marl_ray.plugins.code_completion.attempt import ClassAttempt, class_attempt, shares_of
from marl_ray.plugins.code_completion.feedback import FEEDBACK_BY_MODE, diagnose
from marl_ray.plugins.code_completion.options import CodeCompletionConfig
from marl_ray.sandbox import ExecutionReport

if TYPE_CHECKING:
    from marl_ray.config import Config

# The largest reward of each level; OVERLAP is subtracted.
METHODS = 2.0
TESTS = 4.0
OVERLAP = 1.0


class CodeCompletion(CodeEnvironment[ClassAttempt], AsksExpert):
    """Code completion. Tests of unittest classes are never trusted. A task's prompt is the skeleton. Its fields are
    `class_name`, `tests` (see `Program.tests`), `methods` (the names of the methods to write) and `lengths` (their
    expected characters). `strategy` is one of `STRATEGIES`."""

    modes = tuple(FEEDBACK_BY_MODE)
    max_reward = METHODS + TESTS

    def __init__(
        self,
        num_agents: int,
        strategy: str = "param_count",
        count_untrusted: bool = True,
        sandbox_slice: SandboxSlice = 1,
    ) -> None:
        super().__init__(num_agents, count_untrusted, sandbox_slice)
        self._strategy = strategy

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(
            config.num_agents,
            config.section(CodeCompletionConfig).strategy,
            config.sandbox.count_untrusted,
            config.external.sandbox_slice,
        )

    def roles(self, task: Task) -> list[str]:
        return [f"agent_{number}" for number in range(1, self.num_agents + 1)]

    def first_prompts(self, task: Task) -> list[str]:
        return prompts.first_prompts(task.prompt, task.fields["class_name"], self.shares(task))

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["class_name"], self.shares(task))

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> ClassAttempt:
        return class_attempt(task, responses, self.shares(task), self._visible(last))

    def outcome(self, attempt: ClassAttempt, report: ExecutionReport) -> Outcome:
        """Return the reward by levels, from the attempt and the report on its program."""
        evidence = ExecutionEvidence(report)
        if report.infra_error:
            return Outcome(0.0, evidence=evidence, failure=report.infra_error)
        compiles = report.syntax_error is None
        methods = len(attempt.skeleton.slots)
        valid = attempt.valid / methods
        overlap = len(attempt.overlap) / methods
        rate = self._pass_rate(report, compiles)
        levels = {
            "methods": METHODS * valid * compiles,
            "tests": TESTS * rate,
            "overlap": 0.0 - OVERLAP * overlap * compiles,  # never -0.0
        }
        metrics = {
            "methods_valid": valid,
            "overlap": overlap,
            "syntax_ok": float(compiles),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
        }
        return Outcome(math.fsum(levels.values()), levels, metrics, execution_counts(report), evidence=evidence)

    def feedback(self, attempt: ClassAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return FEEDBACK_BY_MODE[mode](diagnose(attempt, report_of(outcome), self._slice), agent)

    def shares(self, task: Task) -> tuple[tuple[str, ...], ...]:
        """Return the names of each agent's methods."""
        return shares_of(task, self._strategy, self.num_agents)

    def question(self, task: Task, attempt: ClassAttempt) -> str:
        return prompts.question(task.prompt, attempt.program.source, self.roles(task), attempt.shares)
