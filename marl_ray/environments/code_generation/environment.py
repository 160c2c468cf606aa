"""Code generation, for HumanEval, CoopHumanEval, MBPP, the toy set, APPS and LiveCodeBench. All agents but the last
write a helper (`aux`; `aux_1`, `aux_2`... when there are several), the last writes the entry point and may call them.

Reward, the same for all agents, at most 4.0 (2.1 for a single agent, which has no helper levels):

1. 0.4 helper defined and returns a value; 0.6 entry point defined and returns a value, else stop here.
2. 0.5 the joint program compiles, else stop.
3. the share of tests passed.
4. only if a test passed, for a helper that exists: 0.5 main calls it, 1.0 more if main is not a thin wrapper,
   less 0.5 if main throws a result away. `marl_ray.environments.code_generation.usage` says what these words mean.

A helper exists when the joint program defines it, with or without a `return`: one that changes a list in place, or
prints, earns the bonus of being called, though not the 0.4 of level 1. With several helpers each one's part of
levels 1 and 4 counts in equal shares.

Where the task's program is a script (APPS, LiveCodeBench), main reads standard input and prints. It is defined without
a value that it returns, and what its last statement prints stands for that value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.base import Environment
from marl_ray.environments.code_generation import prompts
from marl_ray.environments.code_generation.attempt import CodeAttempt, CodeReader, is_script
from marl_ray.environments.code_generation.diagnosis import SandboxSlice, diagnose
from marl_ray.environments.code_generation.evidence import Executed, counts_of, report_of
from marl_ray.environments.code_generation.extraction import clean
from marl_ray.environments.code_generation.feedback import WORDS
from marl_ray.sandbox import ExecutionReport, Program

if TYPE_CHECKING:
    from marl_ray.config import Config

AUX_DEFINED, MAIN_DEFINED, SYNTAX_OK, TESTS = 0.4, 0.6, 0.5, 1.0
AUX_CALLED, NOT_THIN, MISUSED = 0.5, 1.0, 0.5


class CodeGeneration(Environment[CodeAttempt]):
    """See the module. Tasks have the fields `entry_point`, a function's name, and `tests` (see `Program.tests`); with
    `script` the tests are pairs of standard input and output.

    `num_agents` 1 is a single agent, without helpers. `count_untrusted`: see `SandboxConfig`; `sandbox_slice`, the
    tests that feedback may tell of: see `ExternalConfig`.
    """

    modes = tuple(WORDS)

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents)
        self.helpers = prompts.helper_names(num_agents)
        self.max_reward = 4.0 if self.helpers else MAIN_DEFINED + SYNTAX_OK + TESTS
        self._count_untrusted = count_untrusted
        self._slice = sandbox_slice
        self._reader = CodeReader()

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(config.num_agents, config.sandbox.count_untrusted, config.external.sandbox_slice)

    def roles(self, task: Task) -> list[str]:
        """The function each agent writes, main's last."""
        return [*self.helpers, task.fields["entry_point"]]

    def first_prompts(self, task: Task) -> list[str]:
        return prompts.first_prompts(task.prompt, task.fields["entry_point"], self.helpers, is_script(task))

    def revisions(self, task: Task) -> list[str]:
        return prompts.revisions(task.fields["entry_point"], self.helpers, is_script(task))

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> CodeAttempt:
        visible = None if last or self._slice == "all" else self._slice
        return self._reader.attempt(task, responses, self.helpers, visible)

    def outcome(self, attempt: CodeAttempt, report: ExecutionReport) -> Outcome:
        """Reward by levels, from the attempt and the one execution of its program."""
        if report.infra_error:
            return Outcome(0.0, evidence=Executed(report), failure=report.infra_error)
        *helpers, main = attempt.parts
        use = attempt.use
        runs = main.defined and report.syntax_error is None
        passed = report.passed if self._count_untrusted else report.trusted_passed
        rate = passed / report.total if runs and report.total else 0.0
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
            called = [helper.name for helper in helpers if helper.exists and helper.name in use.called]
            misused = [name for name in called if name in use.misused]
            earned = share if rate > 0 else 0.0
            levels["aux"] = AUX_DEFINED * share * defined
            levels["aux_called"] = AUX_CALLED * earned * len(called)
            levels["not_thin"] = 0.0 if use.thin_wrapper else NOT_THIN * earned * len(called)
            levels["misused"] = 0.0 - MISUSED * earned * len(misused)
            metrics["aux_defined"] = share * defined
            metrics["aux_called"] = share * len(called)
            metrics["thin_wrapper"] = float(use.thin_wrapper)
            metrics["aux_misused"] = share * len(misused)
        return Outcome(math.fsum(levels.values()), levels, metrics, counts_of(report), evidence=Executed(report))

    def feedback(self, attempt: CodeAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return WORDS[mode](diagnose(attempt, report_of(outcome), self._slice), agent)

    def previous_answers(self, attempt: CodeAttempt) -> list[str]:
        """Each agent's own function as it stands in the joint program; all it wrote where there is none."""
        both = zip(attempt.parts, attempt.responses, strict=True)
        return [part.code or clean(response) for part, response in both]

    def question(self, task: Task, attempt: CodeAttempt) -> str:
        return prompts.question(task.prompt, attempt.program.source, self.roles(task))

    def probes(self, attempt: CodeAttempt, report: ExecutionReport) -> list[Program]:
        """Programs that show what the helpers in use are worth; none for a program that passes no test.

        For each helper that main calls two: the joint program where the helper returns None, and the one where the
        helper stands in main's place.
        """
        *helpers, main = attempt.parts
        if not report.passed:
            return []
        names = [helper.name for helper in helpers if helper.exists and helper.name in attempt.use.called]
        return [
            attempt.changed(change)
            for name in names
            for change in (f"def {name}(*args, **kwargs):\n    return None", f"{main.name} = {name}")
        ]

    def probed(
        self, attempt: CodeAttempt, report: ExecutionReport, reports: Sequence[ExecutionReport]
    ) -> dict[str, float]:
        """Metrics from the reports of `probes`, each the mean over helpers.

        `helper_needed`: without it a test no longer passes. `helper_suffices`: it passes as much alone, so that
        main adds nothing. Both are 0 for a helper that is not in use.
        """
        if not self.helpers:
            return {}
        passed = _passing(report)
        needed = sum(not r.infra_error and not passed <= _passing(r) for r in reports[0::2])
        suffices = sum(passed <= _passing(r) for r in reports[1::2])
        return {"helper_needed": needed / len(self.helpers), "helper_suffices": suffices / len(self.helpers)}


def _passing(report: ExecutionReport) -> frozenset[int]:
    """Which tests pass, by their place."""
    return frozenset(i for i, test in enumerate(report.tests) if test.status == "pass")
