"""Problems of APPS and LiveCodeBench that ask for a function: `fn_name`, or a method of a class `Solution`.

They become tasks of code generation like the rows of HumanEval: the method is asked for as a function, and each pair of
arguments and result is an assert. Results are compared as by the benchmarks' own programs: a tuple counts as the list
of its items, in APPS also within a list, and APPS accepts the expected result in a list.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import UnsupportedRow
from marl_ray.sandbox import syntax_tree

COMPARISON = """\
def as_lists(result, nested):
    if isinstance(result, tuple):
        result = list(result)
    if nested and isinstance(result, list) and result and isinstance(result[0], tuple):
        result = [list(item) for item in result]
    return result
"""
"""A function of the tests, which runs beside the expected results."""


@dataclass(frozen=True, slots=True)
class FunctionCase:
    """One call: its arguments, and the results that are right (plain data as JSON has it)."""

    arguments: Sequence[Any]
    results: Sequence[Any]


def function_task(task_id: str, question: str, name: str, starter: str, cases: Sequence[FunctionCase]) -> Task:
    """Return the task of a function. `starter` is the beginning of a solution, or empty.

    Raises UserError, and UnsupportedRow for arguments of the problem's own classes, which JSON does not have.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"task {task_id}: {name!r} is not a function's name")
    if not cases:
        raise UserError(f"task {task_id} has no tests")
    declaration = _declaration(task_id, name, starter) or f"The function is `{name}`."
    nested = any(len(case.results) > 1 for case in cases)
    tests = [COMPARISON]
    for case in cases:
        tests.append(_assertion(task_id, name, case, nested))
    fields = {"entry_point": name, "tests": tuple(tests)}
    return Task(task_id, f"{question.strip()}\n\n{declaration}\n", fields)


def apps_cases(task_id: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[FunctionCase]:
    """Return the calls of an APPS row. Raises UserError for inputs that are no lists of arguments."""
    cases = []
    for arguments, output in zip(inputs, outputs, strict=True):
        if not isinstance(arguments, list):
            raise UserError(f"task {task_id}: inputs of a function should be lists of arguments, not {arguments!r:.60}")
        results = [_with_numbers_as_keys(output)]
        if isinstance(output, list) and output:
            results.append(_with_numbers_as_keys(output[0]))
        cases.append(FunctionCase(list(map(_with_numbers_as_keys, arguments)), results))
    return cases


def _with_numbers_as_keys(value: Any) -> Any:
    """Return a mapping with integers as keys if all keys are digits, since JSON has only texts; else the value."""
    if not isinstance(value, dict):
        return value
    by_number = {}
    for key, item in value.items():
        if not re.fullmatch(r"-?[0-9]{1,4000}", key):
            return value
        by_number[int(key)] = item
    return by_number


def _assertion(task_id: str, name: str, case: FunctionCase, nested: bool) -> str:
    arguments = ", ".join(map(repr, case.arguments))
    call = f"as_lists({name}({arguments}), {nested})"
    if len(case.results) == 1:
        source = f"assert {call} == {case.results[0]!r}"
    else:
        expected = " or ".join(f"result == {result!r}" for result in case.results)
        source = f"result = {call}\nassert {expected}"
    try:
        for value in (*case.arguments, *case.results):
            ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise UserError(f"task {task_id}: an argument or result is no finite JSON value") from None
    return source


def _declaration(task_id: str, name: str, starter: str) -> str:
    """Return the function's declaration without a class, with the imports of its annotations; empty if the starter
    code has none."""
    source = starter.expandtabs(4).rstrip()
    if not source:
        return ""
    try:
        # The starter code ends with a header: its body may have any deeper indentation.
        tree = syntax_tree(f"{source}\n{' ' * 20}pass\n")
    except (SyntaxError, ValueError):
        return ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name != name:
            continue
        if node.args.args and node.args.args[0].arg == "self":
            node.args.args.pop(0)
        mentioned = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        _reject_own_classes(task_id, mentioned)
        returned = ""
        if node.returns:
            returned = f" -> {ast.unparse(node.returns)}"
        line = f"def {name}({ast.unparse(node.args)}){returned}:"
        imported = sorted(mentioned & set(typing.__all__))
        if not imported:
            return line
        return f"from typing import {', '.join(imported)}\n\n{line}"
    return ""


def _reject_own_classes(task_id: str, mentioned: set[str]) -> None:
    """Raise UnsupportedRow if annotations mention a class of the problem, such as ListNode."""
    own = mentioned - set(typing.__all__) - set(dir(builtins))
    if own:
        raise UnsupportedRow(f"task {task_id} asks for a function of {min(own)} objects, which JSON does not have")
