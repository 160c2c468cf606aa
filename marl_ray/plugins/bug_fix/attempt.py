"""A parsed joint action of bug fixing: the diagnosis, the patches, the patched program and its line diff.

Responses are untrusted text, and parsing raises nothing on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation.extraction import ExtractedFunction, extract_function, strip_fence
from marl_ray.plugins.bug_fix.patching import (
    BuggyProgram,
    LineDiff,
    allowed_definition_code,
    apply_patches,
    assign_functions,
    count_changed_tokens,
    definition_code,
    diff_lines,
    parse_buggy_program,
)
from marl_ray.sandbox import Program

LINE = re.compile(r"(?im)^[ \t]*line[ \t]*:[ \t]*(\d{1,9})\b")
WHY = re.compile(r"(?im)^[ \t]*why[ \t]*:[ \t]*(\S.*)$")


@dataclass(frozen=True, slots=True)
class BugReport:
    """A parsed diagnosis: the first named line of the program (from 1), and a reason for it. `problem` is the reason
    why the diagnosis does not count, empty if it does."""

    line: int = 0
    why: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """One patcher's answer. `names` are the functions that it may change, `parts` the ones in its response, including
    broken ones. `refused` are functions with new decorators or defaults, which leave the program unchanged: such code
    could replace the function outside of its body."""

    names: tuple[str, ...]
    parts: tuple[ExtractedFunction, ...]
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairAttempt:
    """A parsed joint action.

    `diagnosis` is None if no agent diagnoses; `patches` has one entry per patcher. `starts` are the lines of the
    patched program on which each function starts. `diff` is the change that the patches make in lines, and `tokens` the
    number of tokens that it changes. `reference` is the change that the reference makes, and `needed` its number of
    tokens, None and 0 without a reference.

    `program` has two entries, the patched program and the buggy one, which shows the tests that passed before. Both are
    executed under the same conditions, so a patch that changes nothing fixes nothing, even if tests time out.
    """

    responses: tuple[str, ...]
    buggy: BuggyProgram
    diagnosis: BugReport | None
    patches: tuple[Patch, ...]
    starts: Mapping[str, int]
    diff: LineDiff
    tokens: int
    reference: LineDiff | None
    needed: int
    program: tuple[Program, Program]

    @property
    def diagnosed(self) -> bool:
        """Whether the diagnosis names a line that the reference changes, or the patches without a reference."""
        report = self.diagnosis
        if report is None or report.problem:
            return False
        change = self.reference or self.diff
        return change.changes(report.line)

    @property
    def answers(self) -> list[str]:
        """Each agent's parsed answer, or its whole response if nothing could be parsed."""
        parsed = []
        report = self.diagnosis
        if report is not None:
            parsed.append("" if report.problem else f"line: {report.line}\nwhy: {report.why}")
        for patch in self.patches:
            parsed.append("\n\n".join(part.code for part in patch.parts))
        for agent, response in enumerate(self.responses):
            parsed[agent] = parsed[agent] or strip_fence(response)
        return parsed


def parse_bug_report(response: str, lines: int) -> BugReport:
    """Parse the diagnosis of a program with `lines` lines."""
    text = strip_fence(response)
    line_match = LINE.search(text)
    why_match = WHY.search(text)
    line = 0
    if line_match is not None:
        line = int(line_match.group(1))
    why = ""
    if why_match is not None:
        why = " ".join(why_match.group(1).split())
    problem = ""
    if not text:
        problem = "empty answer"
    elif line_match is None:
        problem = "names no line"
    elif not 1 <= line <= lines:
        problem = f"there is no line {line}"
    elif not why:
        problem = "says no why"
    return BugReport(line, why, problem)


def repair_attempt(task: Task, responses: Sequence[str], diagnoses: bool, visible: int | None) -> RepairAttempt:
    """Parse a joint action; with `diagnoses` the first response is a diagnosis. `visible`: as in `Program`."""
    fields = task.fields
    buggy = parse_buggy_program(fields["buggy"])
    reference = fields["reference"]
    diagnosis = None
    patching = responses
    if diagnoses:
        diagnosis = parse_bug_report(responses[0], len(buggy.lines))
        patching = responses[1:]
    patches = []
    parts: list[ExtractedFunction] = []
    for response, names in zip(patching, assign_functions(buggy, len(patching)), strict=True):
        patches.append(_patch(response, names, buggy.text, reference))
        parts += patches[-1].parts
    patched, starts = apply_patches(buggy, parts)
    before = Program(
        buggy.text + "\n",
        fields["tests"],
        fields["entry_point"],
        prompt=task.prompt,
        visible=visible,
    )
    reference_diff = None
    needed = 0
    if reference:
        reference_diff = _reference_diff(buggy.text, reference)
        needed = count_changed_tokens(buggy.text, reference)
    return RepairAttempt(
        tuple(responses),
        buggy,
        diagnosis,
        tuple(patches),
        starts,
        diff=diff_lines(buggy.text, patched),
        tokens=count_changed_tokens(buggy.text, patched),
        reference=reference_diff,
        needed=needed,
        program=(replace(before, source=patched + "\n"), before),
    )


_reference_diff = lru_cache(maxsize=1024)(diff_lines)


@lru_cache(maxsize=256)  # in joint mode `cross` each response is part of many joint actions of its node
def _patch(response: str, names: tuple[str, ...], buggy: str, reference: str) -> Patch:
    """Return the patch in a response, without functions that have new decorators or defaults."""
    parts = []
    refused = []
    for name in names:
        part = extract_function(response, name)
        if part.function and not definition_code(part.function) <= allowed_definition_code(buggy, reference, name):
            refused.append(name)
        elif part.code:
            parts.append(part)
    return Patch(names, tuple(parts), tuple(refused))
