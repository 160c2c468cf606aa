"""Bug fix: one agent says where the bug is and why, the others patch the program. They answer at the same time, so in
the first turn nobody has the diagnosis; from the second turn on it comes through the external mode.

One agent patches alone. Of two, the first diagnoses and the second patches. With more, the first diagnoses and the
others patch disjoint functions (`BugFixPatchers`: nobody diagnoses, all patch).

Reward, the same for all agents, at most 3.5 (3.0 where nobody diagnoses):

1. `parses`, 0.5: every patch holds a function that it may change (else its share of this), and the patched program
   compiles. Without any patch, or where the program does not compile, stop here with 0.
2. `kept`, 0.5 x the share of the tests that passed before and still do; all of it if none passed before.
3. `fixed`, 1.5 x the share of the tests that failed before and pass now; nothing if none failed before.
4. `small`, 0.5, only for an accepted patch, one that fixed something and passes every test: all of it if it changes no
   more lines than the reference does, else needed / changed. Without a reference, the share of the program's lines that
   it leaves alone.
5. `diagnosis`, 0.5 x the share of `small` that was earned, only if the diagnosis names a line that the accepted patch
   changes. It is worth less beside a large edit because a patch that changes every line would make any diagnosis right.

What passed before is what the sandbox finds of the buggy program, executed beside the patched one. Changed lines are
defined in `marl_ray.environments.bug_fix.edits`.
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
from marl_ray.environments.bug_fix.facts import Repaired, repair_facts
from marl_ray.environments.bug_fix.feedback import WORDS
from marl_ray.environments.bug_fix.program import buggy_program, shared_out
from marl_ray.environments.code_generation.diagnosis import SandboxSlice
from marl_ray.environments.code_generation.evidence import counts_of
from marl_ray.sandbox import ExecutionReport

if TYPE_CHECKING:
    from marl_ray.config import Config

PARSES, KEPT, FIXED, SMALL, DIAGNOSIS = 0.5, 0.5, 1.5, 0.5, 0.5


class BugFix(Environment[RepairAttempt]):
    """See the module. Tasks have the fields `buggy`, a program's text, `reference`, a correct one or an empty text,
    `entry_point` and `tests` (see `Program.tests`).

    `count_untrusted`: see `SandboxConfig`; `sandbox_slice`, the tests that feedback may tell of: see `ExternalConfig`.
    """

    modes = tuple(WORDS)
    diagnoses: ClassVar[bool] = True
    """Whether the first of several agents diagnoses."""

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
        """There is a buggy program with a function for every patcher."""
        if "buggy" not in task.fields:
            raise UserError(f"task {task.id} has no buggy program: set dataset.type to bug_fix, or another environment")
        there = len(buggy_program(task.fields["buggy"]).functions)
        if there < self.patchers:
            raise UserError(
                f"task {task.id} has {pluralize(there, 'function')} for {pluralize(self.patchers, 'patcher')}: "
                f"lower num_agents by {self.patchers - there}, or leave the task out of the split"
            )

    def roles(self, task: Task) -> list[str]:
        return prompts.role_names(self.has_diagnosis, self.patchers)

    def first_prompts(self, task: Task) -> list[str]:
        buggy = buggy_program(task.fields["buggy"])
        return prompts.first_prompts(task.prompt, buggy, self.has_diagnosis, shared_out(buggy, self.patchers))

    def revisions(self, task: Task) -> list[str]:
        shares = shared_out(buggy_program(task.fields["buggy"]), self.patchers)
        return prompts.revisions(self.has_diagnosis, shares)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> RepairAttempt:
        visible = None if last or self._slice == "all" else self._slice
        return repair_attempt(task, responses, self.has_diagnosis, visible)

    def outcome(self, attempt: RepairAttempt, report: tuple[ExecutionReport, ExecutionReport]) -> Outcome:
        """Reward by levels, from the reports on the patched program and on the buggy one."""
        after, before = report
        failure = after.infra_error or before.infra_error
        if failure:
            return Outcome(0.0, evidence=Repaired(after, frozenset()), failure=failure)
        if attempt.program[0] == attempt.program[1]:
            after = before  # where they were executed one by one, a test may have run out of time in one of them
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
            "changed_lines": float(attempt.edit.size),
        }
        if attempt.diagnosis is not None:
            levels["diagnosis"] = DIAGNOSIS * small * attempt.diagnosed
            metrics["diagnosis_given"] = float(attempt.diagnosis.in_form)
            metrics["diagnosis_right"] = float(accepted and attempt.diagnosed)
        return Outcome(math.fsum(levels.values()), levels, metrics, counts_of(after), evidence=Repaired(after, was))

    def feedback(self, attempt: RepairAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        roles = prompts.role_names(self.has_diagnosis, self.patchers)
        return WORDS[mode](repair_facts(attempt, outcome, roles, agent, self._slice))

    def previous_answers(self, attempt: RepairAttempt) -> list[str]:
        """The diagnosis in its form, and each patcher's functions; all that was written where there is none."""
        return attempt.answers

    def question(self, task: Task, attempt: RepairAttempt) -> str:
        return prompts.question(task.prompt, attempt.buggy, self.roles(task), attempt.answers)

    def _passing(self, report: ExecutionReport) -> frozenset[int]:
        """Which tests pass, by their place; only those whose verdicts count."""
        return frozenset(
            number
            for number, test in enumerate(report.tests)
            if test.status == "pass" and (test.trusted or self._count_untrusted)
        )


class BugFixPatchers(BugFix):
    """All agents patch, each functions of its own; nobody diagnoses."""

    diagnoses = False


def _smallness(attempt: RepairAttempt) -> float:
    """From 0 to 1: how little the patch changes, measured by the reference, or by the program's length."""
    if attempt.needed:
        return min(1.0, attempt.needed / max(1, attempt.edit.size))
    lines = sum(1 for line in attempt.buggy.lines if line.strip())
    return max(0.0, 1.0 - attempt.edit.size / lines)
