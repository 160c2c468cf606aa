"""Code generation: the last agent writes the entry point (main), every other agent a helper that main may call.

docs/reference/environments/code_generation.md describes the joint program, rewards and the use of helpers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.code_generation import prompts
from marl_ray.environments.code_generation.attempt import CodeAttempt, code_attempt, is_script
from marl_ray.environments.code_generation.extraction import strip_fence
from marl_ray.environments.code_generation.feedback import FEEDBACK_BY_MODE, diagnose
from marl_ray.environments.execution import (
    CodeEnvironment,
    ExecutionEvidence,
    SandboxSlice,
    execution_counts,
    report_of,
)
from marl_ray.sandbox import ExecutionReport, Program

AUX_DEFINED, MAIN_DEFINED, SYNTAX_OK, TESTS = 0.4, 0.6, 0.5, 1.0
AUX_CALLED, NOT_THIN, MISUSED = 0.5, 1.0, 0.5


class CodeGeneration(CodeEnvironment[CodeAttempt]):
    """Code generation. Tasks have the fields `entry_point` (a function name) and `tests`
    (see `Program.tests`); with `script`, the tests are pairs of standard input and output."""

    modes = tuple(FEEDBACK_BY_MODE)

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents, count_untrusted, sandbox_slice)
        self.helpers = tuple(prompts.numbered_names("aux", num_agents - 1))
        self.max_reward = 4.0 if self.helpers else MAIN_DEFINED + SYNTAX_OK + TESTS

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
        """Return the reward by levels, from the attempt and the report on its program."""
        evidence = ExecutionEvidence(report)
        if report.infra_error:
            return Outcome(0.0, evidence=evidence, failure=report.infra_error)
        *helpers, main = attempt.parts
        use = attempt.use
        runs = main.defined and report.syntax_error is None
        rate = self._pass_rate(report, runs)
        share = 1.0 / max(1, len(helpers))

        levels = {"main": MAIN_DEFINED * main.defined, "syntax": SYNTAX_OK * runs, "tests": TESTS * rate}
        metrics = {
            "main_defined": float(main.defined),
            "syntax_ok": float(report.syntax_error is None),
            "tests_passed_rate": rate,
            "all_passed": float(rate == 1.0),
        }
        if helpers:
            defined = sum(helper.defined for helper in helpers)
            called = [helper.name for helper in helpers if helper.function and helper.name in use.called]
            misused = [name for name in called if name in use.misused]
            earned = share if rate > 0 else 0.0
            levels["aux"] = AUX_DEFINED * share * defined
            levels["aux_called"] = AUX_CALLED * earned * len(called)
            levels["not_thin"] = 0.0 if use.thin_wrapper else NOT_THIN * earned * len(called)
            levels["misused"] = 0.0 - MISUSED * earned * len(misused)
            metrics |= {"aux_defined": share * defined, "aux_called": share * len(called)}
            metrics |= {"thin_wrapper": float(use.thin_wrapper), "aux_misused": share * len(misused)}
        return Outcome(math.fsum(levels.values()), levels, metrics, execution_counts(report), evidence=evidence)

    def feedback(self, attempt: CodeAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return FEEDBACK_BY_MODE[mode](diagnose(attempt, report_of(outcome), self._slice), agent)

    def previous_answers(self, attempt: CodeAttempt) -> list[str]:
        """Return each agent's code in the joint program, or the whole response if it contributes none."""
        pairs = zip(attempt.parts, attempt.responses, strict=True)
        return [part.code or strip_fence(response) for part, response in pairs]

    def question(self, task: Task, attempt: CodeAttempt) -> str:
        return prompts.question(task.prompt, attempt.program.source, self.roles(task))

    def probes(self, attempt: CodeAttempt, report: ExecutionReport) -> list[Program]:
        """Return two programs for each helper that main calls: the joint program with the helper returning None, and
        with the helper in place of main. A program that passes no test has no probes."""
        *helpers, main = attempt.parts
        if not report.passed:
            return []
        names = [helper.name for helper in helpers if helper.function and helper.name in attempt.use.called]
        statements = ((f"def {name}(*args, **kwargs):\n    return None", f"{main.name} = {name}") for name in names)
        return [attempt.with_statement(statement) for pair in statements for statement in pair]

    def probed(self, attempt: CodeAttempt, report: Any, reports: Sequence[Any]) -> dict[str, float]:
        """Return the mean over helpers of two metrics, 0 for a helper that main does not call. `helper_needed`: without
        the helper a test no longer passes. `helper_suffices`: the helper alone passes the same tests, so main adds
        nothing."""
        if not self.helpers:
            return {}
        passed = _passing(report)
        needed = sum(not r.infra_error and not passed <= _passing(r) for r in reports[0::2])
        suffices = sum(passed <= _passing(r) for r in reports[1::2])
        return {"helper_needed": needed / len(self.helpers), "helper_suffices": suffices / len(self.helpers)}


def _passing(report: ExecutionReport) -> frozenset[int]:
    """Return the indices of the tests that pass."""
    return frozenset(i for i, test in enumerate(report.tests) if test.status == "pass")
