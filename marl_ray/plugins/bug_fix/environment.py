"""Bug fix: of several agents, the first diagnoses the bug in a program and the others patch disjoint functions.

docs/reference/environments/bug_fix.md describes roles, rewards and feedback. `BugFixPatchers` has no diagnosis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.environments.abilities import AsksExpert
from marl_ray.environments.execution import CodeEnvironment, SandboxSlice, execution_counts
from marl_ray.plugins.bug_fix import prompts
from marl_ray.plugins.bug_fix.attempt import RepairAttempt, repair_attempt
from marl_ray.plugins.bug_fix.feedback import FEEDBACK_BY_MODE, RepairEvidence, diagnose_repair
from marl_ray.plugins.bug_fix.patching import assign_functions, count_changed_tokens, parse_buggy_program
from marl_ray.sandbox import ExecutionReport

# The largest reward of each level.
PARSES = 0.5
KEPT = 0.5
FIXED = 1.5
SMALL = 0.5
DIAGNOSIS = 0.5


class BugFix(CodeEnvironment[RepairAttempt], AsksExpert):
    """Bug fix with a diagnosis. Tasks have the fields `buggy` (a program), `reference` (a correct program or an empty
    string), `entry_point` and `tests` (see `Program.tests`)."""

    modes = tuple(FEEDBACK_BY_MODE)
    diagnoses: ClassVar[bool] = True
    """Whether the first of several agents writes a diagnosis."""

    def __init__(self, num_agents: int, count_untrusted: bool = True, sandbox_slice: SandboxSlice = 1) -> None:
        super().__init__(num_agents, count_untrusted, sandbox_slice)
        self.has_diagnosis = self.diagnoses and num_agents > 1
        self.patchers = num_agents - self.has_diagnosis
        self.max_reward = PARSES + KEPT + FIXED + SMALL + DIAGNOSIS * self.has_diagnosis

    def check_task(self, task: Task) -> None:
        """Raise UserError unless the task has a buggy program with a function for every patcher."""
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
        shares = assign_functions(buggy, self.patchers)
        return prompts.first_prompts(task.prompt, buggy, self.has_diagnosis, shares)

    def revisions(self, task: Task) -> list[str]:
        buggy = parse_buggy_program(task.fields["buggy"])
        shares = assign_functions(buggy, self.patchers)
        return prompts.revisions(self.has_diagnosis, shares)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> RepairAttempt:
        return repair_attempt(task, responses, self.has_diagnosis, self._visible(last))

    def outcome(self, attempt: RepairAttempt, report: tuple[ExecutionReport, ExecutionReport]) -> Outcome:
        """Return the reward by levels, from the reports on the patched and the buggy program."""
        after, before = report
        failure = after.infra_error or before.infra_error
        if failure:
            return Outcome(0.0, evidence=RepairEvidence(after, frozenset()), failure=failure)
        if attempt.program[0] == attempt.program[1]:
            after = before  # equal programs: a test may have timed out in only one of two executions
        was = self._passing(before)
        now = self._passing(after)
        failing = before.total - len(was)
        given = sum(bool(patch.parts) for patch in attempt.patches) / self.patchers
        runs = given > 0 and after.syntax_error is None
        kept = 1.0
        if was:
            kept = len(was & now) / len(was)
        fixed = 0.0
        if failing:
            fixed = len(now - was) / failing
        accepted = runs and kept == fixed == 1.0
        # A patch that leaves a test failing earns nothing for its size, or the empty patch would earn most.
        small = 0.0
        if accepted:
            small = _smallness(attempt)
        levels = {
            "parses": PARSES * given * runs,
            "kept": KEPT * kept * runs,
            "fixed": FIXED * fixed * runs,
            "small": SMALL * small,
        }
        metrics = {
            "patch_given": given,
            "syntax_ok": float(after.syntax_error is None),
            "tests_passed_rate": self._pass_rate(after, runs),
            "all_passed": float(accepted),
            "tests_kept_rate": kept * runs,
            "tests_fixed_rate": fixed * runs,
            "changed_lines": float(attempt.diff.size),
            "changed_tokens": float(attempt.tokens),
        }
        if attempt.diagnosis is not None:
            levels["diagnosis"] = DIAGNOSIS * small * attempt.diagnosed
            metrics["diagnosis_given"] = float(not attempt.diagnosis.problem)
            metrics["diagnosis_right"] = float(accepted and attempt.diagnosed)
        return Outcome(
            math.fsum(levels.values()),
            levels,
            metrics,
            execution_counts(after),
            evidence=RepairEvidence(after, was),
        )

    def feedback(self, attempt: RepairAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        patching = prompts.role_names(False, self.patchers)
        diagnosis = diagnose_repair(attempt, outcome, patching, agent, self._slice)
        return FEEDBACK_BY_MODE[mode](diagnosis)

    def question(self, task: Task, attempt: RepairAttempt) -> str:
        return prompts.question(task.prompt, attempt.buggy, self.roles(task), attempt.answers)


class BugFixPatchers(BugFix):
    """Bug fix without a diagnosis: all agents patch."""

    diagnoses = False


def _smallness(attempt: RepairAttempt) -> float:
    """Return how small the patch is, from 0 to 1, relative to the reference or to the program's length."""
    if attempt.needed:
        return min(1.0, attempt.needed / max(1, attempt.tokens))
    return max(0.0, 1.0 - attempt.tokens / count_changed_tokens("", attempt.buggy.text))
