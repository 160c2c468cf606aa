"""Bug fix: one agent says where the bug is and why, the others patch the program. All agents answer at the same time, so
patchers see the diagnosis from the second turn on, through the external mode.

A single agent patches. Of two agents, the first diagnoses and the second patches. With more agents, the first diagnoses
and the others patch disjoint functions (`BugFixPatchers`: all agents patch).

Reward, shared by all agents, at most 3.5 (3.0 without a diagnosis):

1. `parses`, 0.5: the share of patches that contain a function they may change, if the patched program compiles. Without
   any patch, or if the program does not compile, the reward is 0.
2. `kept`, 0.5 x the share of the tests that passed before and still do; 0.5 if no test passed before.
3. `fixed`, 1.5 x the share of the tests that failed before and pass now; 0 if no test failed before.
4. `small`, 0.5, only for an accepted patch, which fixes something and passes every test: full if the patch changes no
   more lines than the reference does, else times needed / changed. Without a reference, times the share of the
   program's lines that stay unchanged.
5. `diagnosis`, 0.5 x the earned share of `small`, if the diagnosis names a line that the accepted patch changes. The
   factor prevents a patch of every line from making any diagnosis right.

The tests that passed before are found by executing the buggy program beside the patched one.
`marl_ray.environments.bug_fix.program` defines changed lines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.environments.base import Environment
from marl_ray.environments.bug_fix import prompts
from marl_ray.environments.bug_fix.attempt import RepairAttempt, repair_attempt
from marl_ray.environments.bug_fix.feedback import FEEDBACK_BY_MODE, RepairEvidence, diagnose_repair
from marl_ray.environments.bug_fix.program import assign_functions, parse_buggy_program
from marl_ray.environments.execution import SandboxSlice, execution_counts, visible_tests
from marl_ray.sandbox import ExecutionReport

if TYPE_CHECKING:
    from marl_ray.config import Config

PARSES, KEPT, FIXED, SMALL, DIAGNOSIS = 0.5, 0.5, 1.5, 0.5, 0.5


class BugFix(Environment[RepairAttempt]):
    """Bug fix; see the module for rewards.

    Tasks have the fields `buggy` (a program), `reference` (a correct program or an empty string), `entry_point` and
    `tests` (see `Program.tests`). `count_untrusted`: see `SandboxConfig`. `sandbox_slice`: the tests that feedback may
    mention, see `ExternalConfig`.
    """

    modes = tuple(FEEDBACK_BY_MODE)
    diagnoses: ClassVar[bool] = True
    """Whether the first of several agents writes a diagnosis."""

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents)
        if num_agents < 1:
            raise ValueError(f"num_agents must be at least 1, not {num_agents}")
        self.has_diagnosis = self.diagnoses and num_agents > 1
        self.patchers = num_agents - self.has_diagnosis
        self.max_reward = PARSES + KEPT + FIXED + SMALL + DIAGNOSIS * self.has_diagnosis
        self._count_untrusted = count_untrusted
        self._slice = sandbox_slice

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(config.num_agents, config.sandbox.count_untrusted, config.external.sandbox_slice)

    def check_task(self, task: Task) -> None:
        """Check that the task has a buggy program with a function for every patcher."""
        if "buggy" not in task.fields:
            raise UserError(f"task {task.id} has no buggy program: set dataset.type to bug_fix, or another environment")
        functions = len(parse_buggy_program(task.fields["buggy"]).functions)
        if functions < self.patchers:
            raise UserError(
                f"task {task.id} has {pluralize(functions, 'function')} for {pluralize(self.patchers, 'patcher')}: "
                f"lower num_agents by {self.patchers - functions}, or leave the task out of the split"
            )

    def roles(self, task: Task) -> list[str]:
        return prompts.role_names(self.has_diagnosis, self.patchers)

    def first_prompts(self, task: Task) -> list[str]:
        buggy = parse_buggy_program(task.fields["buggy"])
        return prompts.first_prompts(task.prompt, buggy, self.has_diagnosis, assign_functions(buggy, self.patchers))

    def revisions(self, task: Task) -> list[str]:
        shares = assign_functions(parse_buggy_program(task.fields["buggy"]), self.patchers)
        return prompts.revisions(self.has_diagnosis, shares)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> RepairAttempt:
        return repair_attempt(task, responses, self.has_diagnosis, visible_tests(self._slice, last))

    def outcome(self, attempt: RepairAttempt, report: tuple[ExecutionReport, ExecutionReport]) -> Outcome:
        """Return the reward by levels, from the reports on the patched and the buggy program."""
        after, before = report
        failure = after.infra_error or before.infra_error
        if failure:
            return Outcome(0.0, evidence=RepairEvidence(after, frozenset()), failure=failure)
        if attempt.program[0] == attempt.program[1]:
            after = before  # equal programs: a test may have timed out in only one of two executions
        was, now = self._passing(before), self._passing(after)
        failing = before.total - len(was)
        given = sum(patch.given for patch in attempt.patches) / self.patchers
        runs = given > 0 and after.syntax_error is None
        kept = len(was & now) / len(was) if was else 1.0
        fixed = len(now - was) / failing if failing else 0.0
        accepted = runs and kept == fixed == 1.0
        small = _smallness(attempt) if accepted else 0.0

        levels = {"parses": PARSES * given * runs, "kept": KEPT * kept * runs, "fixed": FIXED * fixed * runs}
        levels["small"] = SMALL * small
        metrics = {
            "patch_given": given,
            "syntax_ok": float(after.syntax_error is None),
            "tests_passed_rate": len(now) / after.total if runs and after.total else 0.0,
            "all_passed": float(accepted),
            "tests_kept_rate": kept * runs,
            "tests_fixed_rate": fixed * runs,
            "changed_lines": float(attempt.diff.size),
        }
        if attempt.diagnosis is not None:
            levels["diagnosis"] = DIAGNOSIS * small * attempt.diagnosed
            metrics["diagnosis_given"] = float(attempt.diagnosis.in_form)
            metrics["diagnosis_right"] = float(accepted and attempt.diagnosed)
        return Outcome(
            math.fsum(levels.values()), levels, metrics, execution_counts(after), evidence=RepairEvidence(after, was)
        )

    def feedback(self, attempt: RepairAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        roles = prompts.role_names(self.has_diagnosis, self.patchers)
        return FEEDBACK_BY_MODE[mode](diagnose_repair(attempt, outcome, roles, agent, self._slice))

    def previous_answers(self, attempt: RepairAttempt) -> list[str]:
        """Return the diagnosis in its form and each patcher's functions, or the whole response without either."""
        return attempt.answers

    def question(self, task: Task, attempt: RepairAttempt) -> str:
        return prompts.question(task.prompt, attempt.buggy, self.roles(task), attempt.answers)

    def _passing(self, report: ExecutionReport) -> frozenset[int]:
        """Return the indices of the tests that pass with a verdict that counts."""
        return frozenset(
            number
            for number, test in enumerate(report.tests)
            if test.status == "pass" and (test.trusted or self._count_untrusted)
        )


class BugFixPatchers(BugFix):
    """Bug fix without a diagnosis: all agents patch disjoint functions."""

    diagnoses = False


def _smallness(attempt: RepairAttempt) -> float:
    """Return how small the patch is, from 0 to 1, relative to the reference or to the program's length."""
    if attempt.needed:
        return min(1.0, attempt.needed / max(1, attempt.diff.size))
    lines = sum(1 for line in attempt.buggy.lines if line.strip())
    return max(0.0, 1.0 - attempt.diff.size / lines)
