"""Code completion, for ClassEval: the methods of a class are shared out among N agents, by a strategy of the config,
and merged back into the class.

Reward, the same for all agents, at most 6.0 whatever their number; 0 in all if the merged program does not compile:

1. 2.0 for the methods: the share of them that are there, each by its own agent, and parse.
2. 4.0 for the tests: the share of them that pass.
3. less 1.0 for overlap: the share of the methods that more than one agent wrote.

These are the levels of CoMLRL's code completion. A method that nobody wrote raises NotImplementedError here, where
CoMLRL leaves the skeleton's stub, whose None passes some tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.base import Environment
from marl_ray.environments.code_completion import prompts
from marl_ray.environments.code_completion.attempt import ClassAttempt, ClassReader
from marl_ray.environments.code_completion.diagnosis import diagnose
from marl_ray.environments.code_completion.feedback import WORDS
from marl_ray.environments.code_generation.diagnosis import SandboxSlice
from marl_ray.environments.code_generation.evidence import Executed, counts_of, report_of
from marl_ray.environments.code_generation.extraction import clean
from marl_ray.sandbox import ExecutionReport

if TYPE_CHECKING:
    from marl_ray.config import Config

METHODS, TESTS, OVERLAP = 2.0, 4.0, 1.0


class CodeCompletion(Environment[ClassAttempt]):
    """See the module. A task's prompt is the skeleton. Its fields are `class_name`, `tests` (see `Program.tests`),
    `methods`, the names of those to write, and `lengths`, the expected characters of each.

    `strategy` is one of `STRATEGIES`. `count_untrusted`: see `SandboxConfig` (tests of unittest classes are never
    trusted); `sandbox_slice`, the tests that feedback may tell of: see `ExternalConfig`.
    """

    modes = tuple(WORDS)
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
        self._reader = ClassReader(strategy, num_agents)

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
        return prompts.first_prompts(task.prompt, task.fields["class_name"], self._reader.shares(task))

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["class_name"], self._reader.shares(task))

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> ClassAttempt:
        visible = None if last or self._slice == "all" else self._slice
        return self._reader.attempt(task, responses, visible)

    def outcome(self, attempt: ClassAttempt, report: ExecutionReport) -> Outcome:
        """Reward by levels, from the attempt and the one execution of its program."""
        if report.infra_error:
            return Outcome(0.0, evidence=Executed(report), failure=report.infra_error)
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
        return Outcome(math.fsum(levels.values()), levels, metrics, counts_of(report), evidence=Executed(report))

    def feedback(self, attempt: ClassAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return WORDS[mode](diagnose(attempt, report_of(outcome), self._slice), agent)

    def previous_answers(self, attempt: ClassAttempt) -> list[str]:
        """All that each agent wrote: what is left out of the class, it is told of."""
        return [clean(response) for response in attempt.responses]

    def question(self, task: Task, attempt: ClassAttempt) -> str:
        return prompts.question(task.prompt, attempt.program.source, self.roles(task), attempt.shares)
