"""Dataset type of problems with a reference solution, for a solver and testers."""

from __future__ import annotations

import ast
from dataclasses import replace

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import Conversion, statements_of, task_of_mbpp, text_of
from marl_ray.data.loading import DataRow


def _solver_tester(row: DataRow, number: int) -> Task:
    """Convert a row with a reference solution, which becomes part of the task for a solver and testers.

    Rows have HumanEval's fields with `canonical_solution` (the continuation of the prompt, or a program), or MBPP's
    fields with `code` (a program).
    """
    task = task_of_mbpp(row, number)  # accepts HumanEval's fields too
    return replace(task, fields={**task.fields, "reference": _reference(row, task)})


def _reference(row: DataRow, task: Task) -> str:
    function = task.fields["entry_point"]
    body = text_of(row, "canonical_solution")
    programs = [text_of(row, "code")]
    if body:
        programs = [text_of(row, "prompt") + body, body]
    if not any(programs):
        raise UserError(f"task {task.id} has no reference solution (field canonical_solution, or code)")
    for program in programs:
        for node in statements_of(program):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                return program
    raise UserError(f"task {task.id}: its reference solution has no function {function}, its entry point")


SOLVER_TESTER = Conversion("solver_tester", _solver_tester)
