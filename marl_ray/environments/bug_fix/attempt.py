"""One joint action of bug fixing, read once: the diagnosis, the patches, the patched program and the edit it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from marl_ray.core.episode import Task
from marl_ray.environments.bug_fix.bug_report import BugReport, bug_report
from marl_ray.environments.bug_fix.edits import Edit, edit
from marl_ray.environments.bug_fix.program import BuggyProgram, buggy_program, patched, shared_out
from marl_ray.environments.code_generation.extraction import Contribution, clean, contribution
from marl_ray.sandbox import Program


@dataclass(frozen=True, slots=True)
class Patch:
    """One patcher's answer: the functions it may change, and those of them that it gave, broken ones included."""

    names: tuple[str, ...]
    parts: tuple[Contribution, ...]

    @property
    def given(self) -> bool:
        """There is a function that it may change."""
        return bool(self.parts)


@dataclass(frozen=True, slots=True)
class RepairAttempt:
    """`diagnosis` is None where nobody was asked for one; `patches` are one a patcher. `starts` says on which line of
    the patched program each function starts. `needed` are the lines that the reference changes, 0 where there is none.

    `program` has two: the patched program, and the buggy one, which says what passed before. They are executed under
    the same conditions, so that a patch that changes nothing fixes nothing, not even where tests run out of time.
    """

    responses: tuple[str, ...]
    buggy: BuggyProgram
    diagnosis: BugReport | None
    patches: tuple[Patch, ...]
    starts: Mapping[str, int]
    edit: Edit
    needed: int
    program: tuple[Program, Program]

    @property
    def diagnosed(self) -> bool:
        """The diagnosis names a line that the patch changes."""
        return self.diagnosis is not None and self.diagnosis.in_form and self.edit.changes(self.diagnosis.line)

    @property
    def answers(self) -> list[str]:
        """Each agent's own answer as it was understood; all it wrote where it was not."""
        patches = zip(self.patches, self.responses[len(self.responses) - len(self.patches) :], strict=True)
        said = [] if self.diagnosis is None else [_diagnosis(self.diagnosis) or clean(self.responses[0])]
        return [*said, *("\n\n".join(part.code for part in patch.parts) or clean(text) for patch, text in patches)]


def repair_attempt(task: Task, responses: Sequence[str], diagnoses: bool, visible: int | None) -> RepairAttempt:
    """The attempt; with `diagnoses` the first response is a diagnosis. `visible`: as in `Program`."""
    fields = task.fields
    buggy = buggy_program(fields["buggy"])
    patching = responses[1:] if diagnoses else responses
    shares = shared_out(buggy, len(patching))
    patches = tuple(_patch(text, names) for text, names in zip(patching, shares, strict=True))
    new = patched(buggy, [part for patch in patches for part in patch.parts])
    before, after = (
        Program(text + "\n", fields["tests"], fields["entry_point"], prompt=task.prompt, visible=visible)
        for text in (buggy.text, new.text)
    )
    return RepairAttempt(
        responses=tuple(responses),
        buggy=buggy,
        diagnosis=bug_report(responses[0], len(buggy.lines)) if diagnoses else None,
        patches=patches,
        starts=new.starts,
        edit=edit(buggy.text, new.text),
        needed=_needed(buggy.text, fields["reference"]),
        program=(after, before),
    )


@lru_cache(maxsize=1024)
def _needed(buggy: str, reference: str) -> int:
    return edit(buggy, reference).size if reference else 0


@lru_cache(maxsize=256)
def _patch(response: str, names: tuple[str, ...]) -> Patch:
    """In joint mode `cross` a response is in many joint actions of its node."""
    parts = (contribution(response, name) for name in names)
    return Patch(names, tuple(part for part in parts if part.code))


def _diagnosis(report: BugReport) -> str:
    return f"line: {report.line}\nwhy: {report.why}" if report.in_form else ""
