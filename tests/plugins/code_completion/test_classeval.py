"""Conversion, repair and validation of ClassEval's rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.plugins.code_completion.rows import CLASSEVAL
from marl_ray.plugins.code_completion.skeleton import parse_skeleton
from marl_ray.testing import check_dataset

SKELETON = '''\
import os
import json

class Pair:
    """Two numbers."""

    def __init__(self):
        pass

    def add(self, a, b):
        """Their sum."""

    def swap(self, a, b):
        """The other way round."""
        raise NotImplementedError

    def name(self):
        return "pair"
'''
TESTS = """\
import unittest

class TestPair(unittest.TestCase):
    def test_add(self):
        self.assertEqual(Pair().add(1, 2), 3)
"""
ROW = {"task_id": "c/0", "class_name": "Pair", "skeleton": SKELETON, "test": TESTS}
SOLUTION = """\
import re

class Pair:
    def add(self, a, b):
        return a + b

    @staticmethod
    def scaled(a):
        return 2 * a

    def unused(self):
        return 1
"""


def task(**changes: Any) -> Task:
    return CLASSEVAL.task({**ROW, **changes}, 0)


def test_required_fields_of_a_row() -> None:
    made = task()
    assert (made.id, made.prompt) == ("c/0", SKELETON)
    assert made.fields["class_name"] == "Pair"
    assert made.fields["methods"] == ("add", "swap")  # without a body, and no constructor that passes
    assert made.fields["lengths"] == (49, 94)
    check_dataset(CLASSEVAL, [ROW, {**ROW, "task_id": None}])


def test_methods_info_names_the_methods_to_write() -> None:
    made = task(methods_info=[{"method_name": "add"}], solution_code=SOLUTION)
    assert (made.fields["methods"], made.fields["lengths"]) == (("add",), (45,))
    with pytest.raises(UserError, match="task c/0: the skeleton has no method sub"):
        task(methods_info=[{"method_name": "add"}, {"method_name": "sub"}])


def test_imports_come_from_import_statement() -> None:
    assert task(import_statement=["import re", "from a import b"]).prompt.startswith(
        "import re\nfrom a import b\n\nclass Pair:"
    )
    assert task(import_statement=[]).prompt.startswith("class Pair:")


def test_a_method_that_only_the_tests_call_is_copied_from_the_solution() -> None:
    tests = TESTS + "        self.assertEqual(Pair.scaled(1), 2)\n"
    made = task(test=tests, solution_code=SOLUTION)
    assert made.prompt.endswith("\n\n    @staticmethod\n    def scaled(a):\n        return 2 * a\n")
    assert made.fields["methods"] == ("add", "swap")
    assert "scaled" not in task(solution_code=SOLUTION).prompt


@pytest.mark.parametrize(
    "skeleton",
    [
        SKELETON.replace('Their sum."""', "Their sum."),  # an open docstring
        SKELETON.replace('"""Their sum."""', "“Their sum."),
        SKELETON.split("    def swap")[0],  # lacks a method that methods_info describes
    ],
)
def test_a_skeleton_without_all_methods_is_rebuilt_from_its_parts(skeleton: str) -> None:
    parts = {
        "skeleton": skeleton,
        "import_statement": ["import re"],
        "class_description": '    """\n    Two numbers.\n    """\n',
        "class_constructor": "class Pair: \n    def __init__(self):\n        self.count = 2\n\n",
        "methods_info": [
            {"method_name": "add", "method_description": 'def add(self, a, b):\n        """\n        Their sum.'},
            {"method_name": "swap", "method_description": 'def swap(self, a, b):\n        """Swap."""'},
        ],
    }
    made = task(**parts)
    skeleton = parse_skeleton(made.prompt, "Pair", made.fields["methods"], made.fields["lengths"])
    assert [slot.name for slot in skeleton.slots] == ["add", "swap"]
    assert made.prompt.startswith(
        'import re\n\nclass Pair:\n    """\n    Two numbers.\n    """\n    def __init__(self):\n'
    )
    assert '        Their sum.\n        """\n' in made.prompt


def quoted(text: str, quote: str) -> str:
    return f"{quote}{text}{quote}"


@pytest.mark.parametrize(
    "skeleton",
    [
        quoted(SKELETON, '"'),  # not even a string literal
        quoted(SKELETON, "'") + "\n",
        quoted(SKELETON, "'''"),
        repr(SKELETON),
        json.dumps(SKELETON),
        SKELETON.replace('"""', "“”“"),
        SKELETON.replace('"pair"', "‘pair’"),
        quoted(SKELETON.replace('"""Their sum."""', "“““Their sum.”””"), '"'),
    ],
)
def test_quotes_of_a_skeleton_are_repaired(skeleton: str) -> None:
    made = task(skeleton=skeleton)
    assert made.fields["methods"] == ("add", "swap")
    assert made.prompt.replace("'pair'", '"pair"').strip() == SKELETON.strip()


def test_quotes_that_parse_stay() -> None:
    skeleton = SKELETON.replace("Two numbers.", "Two “numbers”.")
    assert task(skeleton=skeleton).prompt == skeleton


def test_methods_info_may_be_columns() -> None:
    """Accept the form of a reader that turns a list of objects into an object of lists."""
    columns = {"method_name": ["add", "swap"], "method_description": ["", ""], "other": None}
    assert task(methods_info=columns).fields["methods"] == ("add", "swap")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"class_name": ""}, "has no class name (field class_name)"),
        ({"class_name": "a b"}, "has no class name"),
        ({"class_name": "Other"}, "the skeleton defines the class Other 0 times"),
        ({"skeleton": ""}, "has no class to complete (field skeleton)"),
        ({"skeleton": "class Pair("}, "the skeleton does not parse"),
        ({"skeleton": "class Pair:\n    def add(self):\n        return 1"}, "the skeleton has no method to write"),
        ({"skeleton": "class Pair:\n    def a(self): ...\n    def a(self): ..."}, "has the method a 2 times"),
        ({"test": ""}, "has no tests (field test)"),
        ({"test": "import unittest"}, "tests contain no test"),
        ({"test": "class ("}, "c/0: "),
    ],
)
def test_invalid_rows_are_rejected(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        task(**changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
