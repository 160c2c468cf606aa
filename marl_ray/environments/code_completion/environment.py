"""Code completion, for ClassEval: N agents write disjoint methods of a class, assigned by a configurable strategy.

Reward, shared by all agents, at most 6.0 for any number of agents; 0 if the merged program does not compile:

1. 2.0 x the share of methods that parse and come from their own agent.
2. 4.0 x the share of passed tests.
3. Less 1.0 x the share of methods that more than one agent wrote.

These are the levels of CoMLRL's code completion. A missing method raises NotImplementedError here, whereas CoMLRL keeps
the skeleton's stub, whose None passes some tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.base import Environment
from marl_ray.environments.code_completion import prompts
from marl_ray.environments.code_completion.attempt import ClassAttempt, class_attempt, shares_of
from marl_ray.environments.code_completion.feedback import FEEDBACK_BY_MODE, diagnose
from marl_ray.environments.code_generation.extraction import strip_fence
from marl_ray.environments.execution import ExecutionEvidence, SandboxSlice, execution_counts, report_of, visible_tests
from marl_ray.sandbox import ExecutionReport

if TYPE_CHECKING:
    from marl_ray.config import Config

METHODS, TESTS, OVERLAP = 2.0, 4.0, 1.0


class CodeCompletion(Environment[ClassAttempt]):
    """Code completion; see the module for rewards.

    A task's prompt is the skeleton. Its fields are `class_name`, `tests` (see `Program.tests`), `methods` (the names of
    the methods to write) and `lengths` (their expected characters). `strategy` is one of `STRATEGIES`.
    `count_untrusted`: see `SandboxConfig`; tests of unittest classes are never trusted. `sandbox_slice`: the tests that
    feedback may mention, see `ExternalConfig`.
    """

    modes = tuple(FEEDBACK_BY_MODE)
    max_reward = METHODS + TESTS

    def __init__(
        self,
        num_agents: int,
        strategy: str = "param_count",
        count_untrusted: bool = True,
        sandbox_slice: SandboxSlice = 1,
    ) -> None:
        super().__init__(num_agents)
        self._count_untrusted = count_untrusted
        self._slice = sandbox_slice
        self._strategy = strategy

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(
            config.num_agents,
            config.code_completion.strategy,
            config.sandbox.count_untrusted,
            config.external.sandbox_slice,
        )

    def roles(self, task: Task) -> list[str]:
        return [f"agent_{number}" for number in range(1, self.num_agents + 1)]

    def first_prompts(self, task: Task) -> list[str]:
        return prompts.first_prompts(task.prompt, task.fields["class_name"], self._shares(task))

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["class_name"], self._shares(task))

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> ClassAttempt:
        return class_attempt(task, responses, self._shares(task), visible_tests(self._slice, last))

    def outcome(self, attempt: ClassAttempt, report: ExecutionReport) -> Outcome:
        """Return the reward by levels, from the attempt and the report on its program."""
        if report.infra_error:
            return Outcome(0.0, evidence=ExecutionEvidence(report), failure=report.infra_error)
        compiles = report.syntax_error is None
        methods = len(attempt.skeleton.slots)
        valid, overlap = attempt.valid / methods, len(attempt.overlap) / methods
        passed = report.passed if self._count_untrusted else report.trusted_passed
        rate = passed / report.total if compiles and report.total else 0.0
        levels = {
            "methods": METHODS * valid * compiles,
            "tests": TESTS * rate,
            "overlap": 0.0 - OVERLAP * overlap * compiles,
        }
        metrics = {
            "methods_valid": valid,
            "overlap": overlap,
            "syntax_ok": float(compiles),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
        }
        return Outcome(
            math.fsum(levels.values()), levels, metrics, execution_counts(report), evidence=ExecutionEvidence(report)
        )

    def feedback(self, attempt: ClassAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return FEEDBACK_BY_MODE[mode](diagnose(attempt, report_of(outcome), self._slice), agent)

    def previous_answers(self, attempt: ClassAttempt) -> list[str]:
        """Return each whole response, including methods that the class does not contain."""
        return [strip_fence(response) for response in attempt.responses]

    def _shares(self, task: Task) -> tuple[tuple[str, ...], ...]:
        return shares_of(task, self._strategy, self.num_agents)

    def question(self, task: Task, attempt: ClassAttempt) -> str:
        return prompts.question(task.prompt, attempt.program.source, self.roles(task), attempt.shares)
