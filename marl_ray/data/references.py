"""Rows whose reference solution is part of the task: HumanEval's and MBPP's, for a solver and a test writer."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import MBPP, text_of
from marl_ray.data.tables import DataRow
from marl_ray.environments.code_generation.extraction import parse


@dataclass(frozen=True, slots=True)
class ReferenceRows:
    """Rows with HumanEval's fields and `canonical_solution`, which goes on where the prompt ends or is a program of its
    own, or with MBPP's, whose `code` is a program."""

    environment: str = "solver_tester"

    def task(self, row: DataRow, number: int) -> Task:
        """See `DatasetType`."""
        task = MBPP.task(row, number)  # which takes HumanEval's fields, too
        return replace(task, fields={**task.fields, "reference": _reference(row, task)})


SOLVER_TESTER = ReferenceRows()


def _reference(row: DataRow, task: Task) -> str:
    body, entry_point = text_of(row, "canonical_solution"), task.fields["entry_point"]
    whole = [f"{text_of(row, 'prompt')}{body}", body] if body else [text_of(row, "code")]
    if not any(whole):
        raise UserError(f"task {task.id} has no reference solution (field canonical_solution, or code)")
    for program in whole:
        tree = parse(program)
        if tree is not None and any(isinstance(n, ast.FunctionDef) and n.name == entry_point for n in tree.body):
            return program
    raise UserError(f"task {task.id}: its reference solution has no function {entry_point}, its entry point")
