"""Parsing of responses: diagnoses, patched functions, and the lines that a patch changes."""

from __future__ import annotations

import pytest

from marl_ray.environments.code_generation.extraction import extract_function
from marl_ray.plugins.bug_fix.attempt import BugReport, parse_bug_report
from marl_ray.plugins.bug_fix.patching import Hunk, apply_patches, assign_functions, diff_lines, parse_buggy_program

TEXT = """\
import math
from typing import List, Optional

LIMIT = 3


def first(x):
    return math.floor(x)


@staticmethod
def second(x):
    return first(x) + LIMIT


class Box:
    def first(self):
        return 0"""


@pytest.mark.parametrize(
    ("response", "read"),
    [
        ("line: 3\nwhy: it goes  over arr", BugReport(3, "it goes over arr")),
        ("Sure!\n```\nLine: 12\nWHY: off by one\n```\n", BugReport(12, "off by one")),
        ("line: 2\nline: 3\nwhy: both", BugReport(2, "both")),
        ("", BugReport(problem="empty answer")),
        ("the third line", BugReport(problem="names no line")),
        ("baseline: 3\nwhy: x", BugReport(0, "x", "names no line")),
        ("line: 13\nwhy: x", BugReport(13, "x", "there is no line 13")),
        ("line: 0\nwhy: x", BugReport(0, "x", "there is no line 0")),
        ("line: 1234567890\nwhy: x", BugReport(0, "x", "names no line")),
        ("line: 4\nwhy:   ", BugReport(4, "", "says no why")),
        ("line: \u0663\nwhy: x", BugReport(3, "x")),  # digits of another script are digits
    ],
)
def test_diagnoses_are_parsed(response: str, read: BugReport) -> None:
    assert parse_bug_report(response, lines=12) == read


@pytest.mark.parametrize(
    ("new", "hunks"),
    [
        ("a\nb\nc\nd", ()),
        ("\na  \n\nb\nc\nd\n", ()),
        ("a\nB\nc\nd", (Hunk(2, 2, ("b",), ("B",)),)),
        ("a\nd", (Hunk(2, 4, ("b", "c"), ()),)),
        ("a\nb\nx\nc\nd", (Hunk(2, 4, (), ("x",)),)),  # the third line is blank
        ("x\na\nb\nc\nd", (Hunk(1, 1, (), ("x",)),)),
        ("a\nb\nc\nd\nx", (Hunk(5, 5, (), ("x",)),)),
        ("a\n b\nc\nx\ny", (Hunk(2, 2, ("b",), (" b",)), Hunk(5, 5, ("d",), ("x", "y")))),
        ("", (Hunk(1, 5, ("a", "b", "c", "d"), ()),)),
    ],
)
def test_hunks_of_a_diff(new: str, hunks: tuple[Hunk, ...]) -> None:
    found = diff_lines("a\nb\n\nc\nd", new)
    assert found.hunks == hunks
    assert found.size == sum(max(len(hunk.old), len(hunk.new)) for hunk in hunks)


def test_a_diff_changes_lines_and_the_neighbours_of_added_lines() -> None:
    found = diff_lines("a\nb\n\nc\nd", "a\nb\nx\nc\ne")
    assert [line for line in range(1, 7) if found.changes(line)] == [2, 3, 4, 5]


def test_only_functions_at_the_top_level_can_be_patched() -> None:
    program = parse_buggy_program(TEXT)
    assert program.functions == {"first": range(7, 9), "second": range(11, 14)}
    assert assign_functions(program, 1) == [("first", "second")]
    assert assign_functions(program, 2) == [("first",), ("second",)]
    assert assign_functions(program, 3) == [("first",), ("second",), ()]
    twice = parse_buggy_program("def f(x): return 1\ndef g(x): return 2\ndef f(x): return 3")
    assert twice.functions == {"g": range(2, 3), "f": range(3, 4)}
    with pytest.raises(ValueError, match="does not parse"):
        parse_buggy_program("def f(:")


def test_a_patched_function_replaces_the_old_one_in_place() -> None:
    program = parse_buggy_program(TEXT)
    new, starts = apply_patches(
        program, [extract_function("@staticmethod\ndef second(x):\n    return LIMIT", "second")]
    )
    assert new == TEXT.replace("first(x) + LIMIT", "LIMIT")
    assert starts == {"first": 7, "second": 11}
    assert apply_patches(program, [])[0] == TEXT


def test_imports_are_added_unless_the_program_has_them() -> None:
    answer = (
        "from __future__ import annotations\nimport math, os\nfrom typing import List\nimport re\n\n"
        "def first(x: List):\n    return math.ceil(x) if os.sep else re"
    )
    new, starts = apply_patches(parse_buggy_program(TEXT), [extract_function(answer, "first")])
    assert new.split("\n")[0] == "from __future__ import annotations"
    assert new.count("typing") == 1
    place = new.split("\n")[7:12]
    assert place == [
        "import math, os",
        "import re",
        "def first(x: List):",
        "    return math.ceil(x) if os.sep else re",
        "",
    ]
    assert starts["first"] == 10
    assert new.split("\n")[starts["second"] - 1] == "@staticmethod"


def test_a_broken_function_is_inserted_unchanged() -> None:
    new, _ = apply_patches(parse_buggy_program(TEXT), [extract_function("def first(x):\n    return (x", "first")])
    assert new == TEXT.replace("math.floor(x)", "(x")
