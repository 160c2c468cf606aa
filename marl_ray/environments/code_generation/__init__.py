"""Code generation: the last agent writes the entry point (main), every other agent a helper that main may call.

docs/reference/environments/code_generation.md describes the joint program, rewards and the use of helpers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.abilities import AsksExpert, HasProbes
from marl_ray.environments.code_generation import prompts
from marl_ray.environments.code_generation.attempt import CodeAttempt, code_attempt, is_script
from marl_ray.environments.code_generation.feedback import FEEDBACK_BY_MODE, diagnose
from marl_ray.environments.code_generation.probes import needed_and_sufficient, probe_statements
from marl_ray.environments.code_generation.usage import conditions_on
from marl_ray.environments.execution import (
    CodeEnvironment,
    ExecutionEvidence,
    SandboxSlice,
    execution_counts,
    report_of,
)
from marl_ray.sandbox import ExecutionReport, Limits, Program

if TYPE_CHECKING:
    from marl_ray.config import Config

HelperReward = Literal["executed", "static"]
# The largest reward of each level. docs/reference/environments/code_generation.md explains them.
AUX_DEFINED = 0.4
MAIN_DEFINED = 0.6
SYNTAX_OK = 0.5
TESTS = 1.0
AUX_CALLED = 0.5
NOT_THIN = 1.0
MISUSED = 0.5
"""Subtracted if main throws a helper's result away."""
WITHOUT_TESTS = AUX_DEFINED + MAIN_DEFINED + SYNTAX_OK
UNSOLVED = 1.0 - (TESTS - AUX_DEFINED) / (TESTS + AUX_CALLED + NOT_THIN)
"""Share that a program which fails a test loses of all that it earns above WITHOUT_TESTS. It then earns less than the
2.1 of a program that passes all tests without a helper, whatever its helper does."""
PROBE_CPU_S = 1.0
"""CPU seconds of one test of a probe, plus twice the CPU time of the whole joint program. A stand-in can make a loop
endless."""


class CodeGeneration(CodeEnvironment[CodeAttempt], AsksExpert, HasProbes):
    """Code generation. Tasks have the fields `entry_point` (a function name) and `tests`
    (see `Program.tests`); with `script`, the tests are pairs of standard input and output."""

    modes = tuple(FEEDBACK_BY_MODE)

    def __init__(
        self,
        num_agents: int,
        count_untrusted: bool = True,
        sandbox_slice: SandboxSlice = 1,
        helper_reward: HelperReward = "static",
        memory_mb: int = 512,
    ) -> None:
        super().__init__(num_agents, count_untrusted, sandbox_slice)
        self._memory_mb = memory_mb
        self.pays_probes = helper_reward == "executed" and num_agents > 1
        self.helpers = tuple(prompts.numbered_names("aux", num_agents - 1))
        self.max_reward = 4.0 if self.helpers else MAIN_DEFINED + SYNTAX_OK + TESTS

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(
            config.num_agents,
            config.sandbox.count_untrusted,
            config.external.sandbox_slice,
            config.code_generation.helper_reward,
            config.sandbox.memory_mb,
        )

    def roles(self, task: Task) -> list[str]:
        """Return the name of each agent's function, main's last."""
        return [*self.helpers, task.fields["entry_point"]]

    def first_prompts(self, task: Task) -> list[str]:
        return prompts.first_prompts(task.prompt, task.fields["entry_point"], self.helpers, is_script(task))

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["entry_point"], self.helpers, is_script(task))

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> CodeAttempt:
        return code_attempt(task, responses, self.helpers, self._visible(last))

    def outcome(self, attempt: CodeAttempt, report: ExecutionReport) -> Outcome:
        """Return the reward by levels, from the attempt and the report on its program. With `pays_probes`, the levels
        of helper use are provisional until `probed_outcome`."""
        evidence = ExecutionEvidence(report)
        if report.infra_error:
            return Outcome(0.0, evidence=evidence, failure=report.infra_error)
        *helpers, main = attempt.parts
        runs = main.defined and report.syntax_error is None
        rate = self._pass_rate(report, runs)
        levels = {"main": MAIN_DEFINED * main.defined, "syntax": SYNTAX_OK * runs, "tests": TESTS * rate}
        metrics = {
            "main_defined": float(main.defined),
            "syntax_ok": float(report.syntax_error is None),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
            "visible_passed": float(self._passes_visible(report, rate)),
        }
        if helpers:
            use = attempt.use
            called = self._called(attempt)
            misused = use.misused.intersection(called)
            defined = sum(helper.defined for helper in helpers)
            # The levels of all helpers together are worth as much as the levels of a single helper.
            share = 1.0 / len(helpers)
            # A program that passes no test earns nothing by calling helpers.
            earned = share if rate > 0 else 0.0
            levels["aux"] = AUX_DEFINED * share * defined
            levels["aux_called"] = AUX_CALLED * earned * len(called)
            levels["not_thin"] = 0.0
            if not use.thin_wrapper:
                levels["not_thin"] = NOT_THIN * earned * len(called)
            levels["misused"] = 0.0 - MISUSED * earned * len(misused)  # never -0.0
            if self.pays_probes:
                levels["unsolved"] = 0.0
            metrics["aux_defined"] = share * defined
            metrics["aux_called"] = share * len(called)
            metrics["thin_wrapper"] = float(use.thin_wrapper)
            metrics["aux_misused"] = share * len(misused)
        # `fsum` rounds once, so that the order of the levels does not matter.
        return Outcome(math.fsum(levels.values()), levels, metrics, execution_counts(report), evidence=evidence)

    def feedback(self, attempt: CodeAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return FEEDBACK_BY_MODE[mode](diagnose(attempt, report_of(outcome), self._slice), agent)

    def question(self, task: Task, attempt: CodeAttempt) -> str:
        return prompts.question(task.prompt, attempt.program.source, self.roles(task))

    def probes(self, attempt: CodeAttempt, report: ExecutionReport) -> list[Program]:
        """Return the probes (see `probes`) of each helper that main calls. A program that passes no test has none."""
        main = attempt.parts[-1]
        passed = len(self._passing(report))
        if not passed or main.function is None:
            return []
        cpu_s = PROBE_CPU_S + 2 * round(report.cpu_s)
        limits = Limits(cpu_s, 3 * cpu_s, 6 * cpu_s, max_timeouts=1, memory_mb=self._memory_mb)
        probes = []
        for name in self._called(attempt):
            conditions = conditions_on(main, name)
            for statement in probe_statements(name, main.function, conditions, bool(attempt.call), passed):
                probes.append(attempt.with_statement(statement, limits))
        return probes

    def probed(self, attempt: CodeAttempt, report: Any, reports: Sequence[Any]) -> dict[str, float]:
        """Return the share of helpers that main needs (`helper_needed`), and of helpers that suffice alone, so that
        main adds nothing (`helper_suffices`). Helpers that main does not call count as neither."""
        if not self.helpers:
            return {}
        needed = 0
        sufficient = 0
        for is_needed, is_sufficient in self._probed(report, reports):
            needed += is_needed
            sufficient += is_sufficient
        return {"helper_needed": needed / len(self.helpers), "helper_suffices": sufficient / len(self.helpers)}

    def probed_outcome(self, attempt: CodeAttempt, report: Any, outcome: Outcome, reports: Sequence[Any]) -> Outcome:
        """Return the outcome with the metrics of probes. With `pays_probes`, `aux_called` is paid per needed helper,
        `not_thin` per needed helper that does not suffice, and all levels of helper use times the share of passed
        tests."""
        outcome = super().probed_outcome(attempt, report, outcome, reports)
        if not self.pays_probes or outcome.failure:
            return outcome
        failure = next((probe.infra_error for probe in reports if probe.infra_error), None)
        if failure:
            return replace(outcome, failure=failure)
        found = self._probed(report, reports)
        # Shares of the helpers that main calls; without one, the levels are 0 anyway.
        needed = sum(is_needed for is_needed, _ in found) / max(1, len(found))
        working = found.count((True, False)) / max(1, len(found))
        rate = outcome.metrics["tests_passed_rate"]
        levels = dict(outcome.levels)
        levels["aux_called"] *= needed * rate
        levels["not_thin"] *= working * rate
        levels["misused"] *= rate
        if rate < 1.0:
            above = max(0.0, math.fsum(levels.values()) - WITHOUT_TESTS)
            levels["unsolved"] = 0.0 - UNSOLVED * above
        return replace(outcome, reward=math.fsum(levels.values()), levels=levels)

    def _probed(self, report: ExecutionReport, reports: Sequence[ExecutionReport]) -> list[tuple[bool, bool]]:
        return needed_and_sufficient(self._passing(report), [self._passing(probe) for probe in reports])

    def _called(self, attempt: CodeAttempt) -> list[str]:
        """Return the helpers that exist and that main calls."""
        return [part.name for part in attempt.parts[:-1] if part.function and part.name in attempt.use.called]
