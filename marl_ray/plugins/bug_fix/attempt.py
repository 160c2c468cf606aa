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
        return report is not None and not report.problem and (self.reference or self.diff).changes(report.line)

    @property
    def answers(self) -> list[str]:
        """Each agent's parsed answer, or its whole response if nothing could be parsed."""
        parsed = ["\n\n".join(part.code for part in patch.parts) for patch in self.patches]
        if self.diagnosis is not None:
            report = self.diagnosis
            parsed.insert(0, "" if report.problem else f"line: {report.line}\nwhy: {report.why}")
        return [own or strip_fence(response) for own, response in zip(parsed, self.responses, strict=True)]


def parse_bug_report(response: str, lines: int) -> BugReport:
    """Parse the diagnosis of a program with `lines` lines."""
    text = strip_fence(response)
    line_match, why_match = LINE.search(text), WHY.search(text)
    line = int(line_match.group(1)) if line_match else 0
    why = " ".join(why_match.group(1).split()) if why_match else ""
    if not text:
        problem = "empty answer"
    elif line_match is None:
        problem = "names no line"
    elif not 1 <= line <= lines:
        problem = f"there is no line {line}"
    else:
        problem = "" if why else "says no why"
    return BugReport(line, why, problem)


def repair_attempt(task: Task, responses: Sequence[str], diagnoses: bool, visible: int | None) -> RepairAttempt:
    """Parse a joint action; with `diagnoses` the first response is a diagnosis. `visible`: as in `Program`."""
    fields = task.fields
    buggy = parse_buggy_program(fields["buggy"])
    patching = responses[1:] if diagnoses else responses
    shares = assign_functions(buggy, len(patching))
    reference = fields["reference"]
    allowed = {name: allowed_definition_code(buggy.text, reference, name) for name in buggy.functions}
    extracted = (_patch(text, names) for text, names in zip(patching, shares, strict=True))
    patches = tuple(_without_refused(patch, allowed) for patch in extracted)
    patched, starts = apply_patches(buggy, [part for patch in patches for part in patch.parts])
    before, after = (
        Program(text + "\n", fields["tests"], fields["entry_point"], prompt=task.prompt, visible=visible)
        for text in (buggy.text, patched)
    )
    diagnosis = parse_bug_report(responses[0], len(buggy.lines)) if diagnoses else None
    needed = count_changed_tokens(buggy.text, reference) if reference else 0
    return RepairAttempt(
        tuple(responses),
        buggy,
        diagnosis,
        patches,
        starts,
        diff=diff_lines(buggy.text, patched),
        tokens=count_changed_tokens(buggy.text, patched),
        reference=_reference_diff(buggy.text, reference),
        needed=needed,
        program=(after, before),
    )


@lru_cache(maxsize=1024)
def _reference_diff(buggy: str, reference: str) -> LineDiff | None:
    return diff_lines(buggy, reference) if reference else None


def _without_refused(patch: Patch, allowed: Mapping[str, frozenset[str]]) -> Patch:
    """Return the patch without functions that have new decorators or defaults."""
    refused = tuple(
        part.name for part in patch.parts if part.function and not definition_code(part.function) <= allowed[part.name]
    )
    return replace(patch, parts=tuple(part for part in patch.parts if part.name not in refused), refused=refused)


@lru_cache(maxsize=256)  # in joint mode `cross` each response is part of many joint actions of its node
def _patch(response: str, names: tuple[str, ...]) -> Patch:
    parts = (extract_function(response, name) for name in names)
    return Patch(names, tuple(part for part in parts if part.code))
