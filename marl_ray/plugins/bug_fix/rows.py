"""Dataset type of buggy programs, such as QuixBugs and HumanEvalPack."""

from __future__ import annotations

from dataclasses import replace

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, checked, task_of_humaneval, text_of
from marl_ray.data.loading import DataRow
from marl_ray.plugins.bug_fix.patching import diff_lines, parse_buggy_program


def _bug_fix(row: DataRow, number: int) -> Task:
    """Convert a row with HumanEval's fields, `buggy_solution` and optionally `canonical_solution`, such as QuixBugs.

    Both solutions are complete programs, or the continuation of `declaration` if the row has one. HumanEvalPack also
    has `import` (code before the declaration) and `test_setup` (code before the test).
    """
    setup = text_of(row, "test_setup")
    test = text_of(row, "test")
    if setup and test:
        row = {**row, "test": f"{setup}\n{test}"}
    task = task_of_humaneval(row, "bug_fix", number)
    buggy = _program(row, "buggy_solution")
    reference = _program(row, "canonical_solution")
    if not buggy:
        raise UserError(f"task {task.id} has no buggy program (field buggy_solution)")
    _check_program(task, "buggy_solution", buggy)
    if reference:
        _check_program(task, "canonical_solution", reference)
    if reference and not diff_lines(buggy, reference).size:
        raise UserError(f"task {task.id}: canonical_solution is the same program as buggy_solution")
    return checked(replace(task, fields={**task.fields, "buggy": buggy, "reference": reference}))


def _program(row: DataRow, field: str) -> str:
    """Return a program without surrounding blank lines, so line numbers start at its first line; empty if missing."""
    body = text_of(row, field)
    if not body:
        return ""
    parts = []
    for name in ("import", "declaration"):
        above = text_of(row, name)
        if above:
            parts.append(above.rstrip("\n"))
    program = "\n".join([*parts, body])
    return program.replace("\r", "\n").strip("\n").rstrip()


def _check_program(task: Task, field: str, program: str) -> None:
    entry_point = task.fields["entry_point"]
    try:
        if entry_point not in parse_buggy_program(program).functions:
            raise UserError(f"task {task.id}: {field} has no function {entry_point}, its entry point")
    except ValueError as error:
        raise UserError(f"task {task.id}: {field} {error}") from None


BUG_FIX = Conversion("bug_fix", _bug_fix)
