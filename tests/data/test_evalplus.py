"""Rows of HumanEval+ and MBPP+, with the fields of the published files and their comparison of results."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data.convert import HUMANEVAL, MBPP
from marl_ray.sandbox import Program, Sandbox

MEAN: dict[str, Any] = {
    "task_id": "HumanEval/4",
    "prompt": 'from typing import List\n\n\ndef mean(numbers: List[float]) -> float:\n    """Mean\n    value."""\n',
    "contract": "\n    assert len(numbers) > 0 # $_CONTRACT_$\n",
    "canonical_solution": '    """A docstring\n    of lines."""\n    return sum(numbers) / len(numbers)\n',
    "entry_point": "mean",
    "test": "def check(candidate):\n    assert candidate([1.0]) == 1.0\n",
    "base_input": [[[1.0, 2.0]], [[1.0]]],
    "plus_input": [[[0.1, 0.2, 0.3]], [[float("inf"), 1.0]]],
    "atol": 0,
}
PAIRS: dict[str, Any] = {
    "task_id": "Mbpp/2",
    "prompt": '"""\nWrite a function to find shared elements.\nassert shared((3, 4), (4,)) == (4,)\n"""\n',
    "contract": "",
    "canonical_solution": "\ndef shared(one, other):\n    assert one is not None\n"
    "    return tuple(set(one + ()) & set(other))\n",
    "entry_point": "shared",
    "base_input": [[[3, 4], [4]]],
    "plus_input": [[[], []]],
    "atol": 0,
    "assertion": "assert shared((3, 4), (4,)) == (4,)",
}


def verdicts(sandbox: Sandbox, task: Task, program: str) -> list[bool]:
    report = sandbox.run(Program(program, task.fields["tests"], task.fields["entry_point"]))
    assert report.trusted
    return [test.status == "pass" for test in report.tests]


def test_results_are_compared_with_the_reference(sandbox: Sandbox) -> None:
    task = HUMANEVAL.task(MEAN, 0)
    assert task.prompt == MEAN["prompt"]
    assert len(task.fields["tests"]) == 5, "a setup and a test per input"
    assert verdicts(sandbox, task, MEAN["prompt"] + MEAN["canonical_solution"]) == [True] * 4
    reordered = "def mean(numbers):\n    return sum(reversed(numbers)) / len(numbers)\n"
    assert verdicts(sandbox, task, reordered) == [True] * 4, "rounding errors are no failures"
    wrong = "def mean(numbers):\n    return numbers[0]\n"
    assert verdicts(sandbox, task, wrong) == [False, True, False, True]
    assert verdicts(sandbox, task, "def mean(numbers):\n    return str(numbers[0])\n") == [False] * 4
    assert verdicts(sandbox, task, "def mean(numbers):\n    return 1 / 0\n") == [False] * 4


def test_tuples_that_json_stores_as_lists(sandbox: Sandbox) -> None:
    task = MBPP.task(PAIRS, 0)
    assert task.prompt.startswith("Write a function")
    assert task.prompt.endswith("The function is `shared(one, other)`.\n")
    assert verdicts(sandbox, task, PAIRS["canonical_solution"]) == [True, True]


@pytest.mark.parametrize(
    ("number", "given", "expected"),
    [
        (63, [[[1, 2], [3, 4]]], "[(1, 2), (3, 4)]"),
        (259, [[[1, 2]], [[3, 4]]], "((1, 2),), ((3, 4),)"),
        (580, [[1, [2, [3]]]], "(1, (2, (3,)))"),
        (250, [[1, 2], 3], "(1, 2), 3"),
        (444, [[[1, 2]], 3], "[(1, 2)], 3"),
        (722, [{"a": [1, 2]}, 3], "{'a': (1, 2)}, 3"),
        (106, [[1], [2]], "[1], (2,)"),
        (278, [[1, [2, [3]]]], "(1, (2, [3]))"),
        (115, [[[1], []]], "[{1}, {}]"),
        (252, ["1j"], "1j"),
        (3, [[1]], "[1]"),
    ],
)
def test_types_of_arguments(number: int, given: list[Any], expected: str) -> None:
    row = {
        **{"task_id": f"Mbpp/{number}", "prompt": '"""Add."""\n', "canonical_solution": "def f(*x):\n    return 1"},
        **{"entry_point": "f", "base_input": [given], "plus_input": []},
    }
    _, test = MBPP.task(row, 0).fields["tests"]
    assert test == f"assert _equal(f({expected}), _reference({expected}))"


@pytest.mark.parametrize(
    ("name", "program", "good", "bad"),
    [
        ("sum_div", "return x", "return 0", "return 1"),
        ("Diff", "return [1, 2]", "return [2, 1, 1]", "return [1]"),
        ("check_str", "return []", "return 3", "return None"),
        ("are_equivalent", "return x", "return 7", "return 1 / 0"),
        ("digit_distance_nums", "return 3", "return 0", "return 1"),
    ],
)
def test_functions_with_several_results(sandbox: Sandbox, name: str, program: str, good: str, bad: str) -> None:
    row = {
        **{"task_id": "Mbpp/9", "prompt": '"""Do."""\n', "canonical_solution": f"def {name}(x, y):\n    {program}"},
        **{"entry_point": name, "base_input": [[5, 5]], "plus_input": []},
    }
    task = MBPP.task(row, 0)
    assert verdicts(sandbox, task, f"def {name}(x, y):\n    {good}") == [True]
    assert verdicts(sandbox, task, f"def {name}(x, y):\n    {bad}") == [False]


def test_roots_of_polynomials(sandbox: Sandbox) -> None:
    row = MEAN | {
        **{"task_id": "HumanEval/32", "prompt": "def find_zero(xs: list):\n", "entry_point": "find_zero"},
        **{"canonical_solution": "    return 1.0\n", "base_input": [[[-1, 0, 1]]], "plus_input": [], "atol": 1e-4},
    }
    task = HUMANEVAL.task(row, 0)
    assert verdicts(sandbox, task, "def find_zero(xs):\n    return -1.00001\n") == [True]
    assert verdicts(sandbox, task, "def find_zero(xs):\n    return 0.9\n") == [False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"canonical_solution": "    return (\n"}, "prompt and canonical_solution are not a program"),
        ({"prompt": "def other(x):\n"}, "canonical_solution has no function mean"),
        ({"plus_input": [3]}, "inputs should be lists of arguments, not 3"),
        ({"atol": "0"}, "atol should be a number"),
        ({"prompt": "from math import *\n" + MEAN["prompt"]}, "canonical_solution cannot be used in a function"),
    ],
)
def test_invalid_rows_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match="task HumanEval/4") as caught:
        HUMANEVAL.task(MEAN | changes, 0)
    assert message in str(caught.value)
