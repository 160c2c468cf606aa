"""Tests that share variables get the verdicts of plain CPython, wherever each of them runs."""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any

import pytest

from marl_ray.sandbox import Program, Sandbox
from marl_ray.sandbox.inside.suites.suite_parser import parse_tests, split_suite
from tests.sandbox.helpers import run_asserts, statuses

PROGRAM = """
def order(xs, key=None):
    return sorted(xs, key=key)
def order_in_place(xs, key=None):
    xs.sort(key=key)
    return xs
def push(xs, x):
    xs.append(x)
    return len(xs)
def each(function, xs):
    return [function(x) for x in xs]
def same(x):
    return x
"""
SUITES = int(os.environ.get("MARL_RAY_SUITES", 150))
LISTS = ("a", "b", "c", "d")


def random_statement(rng: random.Random) -> str:
    v, w, n = rng.choice(LISTS), rng.choice(LISTS), rng.randrange(9)
    return rng.choice(
        (
            f"{v} = {[rng.randrange(9) for _ in range(3)]}",
            f"{v} = {w}",
            f"{v} = {w}[:]",
            f"{v}, {w} = {w}, {v}",
            f"{v}.append({n})",
            f"{v} += [{n}]",
            f"{v}.sort()",
            f"n = {n}",
            "n += 1",
            f"pair = ({n}, {n + 1})",
            f"pair = ({v}, {n})",
            "calls = []",
            f"def record(x):\n    calls.append(x)\n    return x + {n}",
            "def count(x):\n    global n\n    n += 1\n    return x",
            "def keep(x, xs=[]):\n    xs.append(x)\n    return len(xs)",
            f"scale = lambda x: x * {n}",
            "shift = lambda x: x + n",
            "class Box:\n    items = []\n    def add(self, x):\n        self.items += [x]\n        return x",
            "items = Box.items",
            f"class Plain:\n    limit = {n}\n    def add(self, x):\n        return x + self.limit",
            "box = Box()",
            "box = Plain()",
            f"table = {{{n}: {v}}}",
            f"table[{n}] = {v}",
            f"for x in {v}[:2]:\n    {w}.append(x)",
        )
    )


def random_assertion(rng: random.Random) -> str:
    v = rng.choice(LISTS)
    function = rng.choice(
        ("record", "count", "keep", "scale", "shift", "box.add", "Plain().add", "calls.append", "lambda x: -x")
    )
    in_guest = (f"order({v}, {function})", f"order_in_place({v}, {function})", f"each({function}, {v})")
    in_judge = (f"order({v})", f"order_in_place({v})", f"push({v}, 5)", v, "calls", "n", "pair", "table", "box.items")
    more = (f"same({v}) is {v}", "[scale(x) for x in same([1, 2])]", "Box.items", f"sorted({v}, key=shift)")
    return rng.choice(rng.choice((in_guest, in_judge, more)))


def random_suite(rng: random.Random) -> tuple[tuple[str, ...], list[str]]:
    """Return tests that share variables, and the verdicts of CPython on them."""
    names: dict[str, Any] = {"__name__": "tests"}
    exec(PROGRAM, names)
    tests: list[str] = []
    verdicts: list[str] = []
    for number in range(rng.randrange(2, 7)):
        lines: list[str] = []
        for line in [*(f"{name} = {[rng.randrange(9)] * 2}" for name in LISTS if number == 0), *random_lines(rng)]:
            with contextlib.suppress(NameError, AttributeError, KeyError):
                exec(line, names)
                lines.append(line)
        verdict = ""
        while not verdict:
            expression, got = random_assertion(rng), "None"
            with contextlib.suppress(NameError, AttributeError, KeyError):  # these change nothing
                try:
                    got = repr(eval(expression, names))
                    verdict = rng.choice(("pass", "pass", "pass", "fail")) if "<" not in got else "fail"
                except TypeError:
                    verdict = "error"
        verdicts.append(verdict)
        lines.append(f"assert ({expression}) == {got if verdict == 'pass' else 'None'}")
        tests.append("\n".join(lines))
    return tuple(tests), verdicts


def random_lines(rng: random.Random) -> list[str]:
    return [random_statement(rng) for _ in range(rng.randrange(6))]


@pytest.mark.parametrize("visible", [None, 1, -1])
def test_random_suites_with_state_are_judged_as_in_cpython(sandbox: Sandbox, visible: int | None) -> None:
    suites = [random_suite(random.Random(seed)) for seed in range(SUITES if visible is None else SUITES // 5)]
    reports = sandbox.run_batch([Program(PROGRAM, tests, "order", visible=visible) for tests, _ in suites])
    wrong = [
        (number, tests, expected, [(test.status, test.message) for test in report.tests])
        for number, ((tests, expected), report) in enumerate(zip(suites, reports, strict=True))
        if statuses(report) != expected
    ]
    assert not wrong, f"{len(wrong)} of {len(suites)} suites, the first: {wrong[0]}"
    if visible is None:
        trusted = sum(test.trusted for report in reports for test in report.tests)
        assert trusted > sum(report.total for report in reports) // 4, "most of them run in the guest"


SORTS_IN_PLACE = "def f(xs, key):\n    xs.sort(key=key)\n    return list(xs)\n"
CALLS_BACK = "def f(function):\n    return function(1)\n"


@pytest.mark.parametrize(
    ("source", "tests", "expected"),
    [
        (
            "def f(xs, key): return sorted(xs, key=key)\n",
            ("data = [3, 1, 2]\nassert f(data, lambda x: -x) == [3, 2, 1]", "assert data == [3, 1, 2]"),
            ["pass", "pass"],
        ),
        (
            SORTS_IN_PLACE,
            ("data = [3, 1, 2]\nassert f(data, lambda x: -x) == [3, 2, 1]", "assert data == [3, 1, 2]"),
            ["pass", "fail"],
        ),
        (
            CALLS_BACK,
            (
                "calls = []\ndef record(x):\n    calls.append(x)\n    return x\nassert f(record) == 1",
                "assert calls == [1]",
            ),
            ["pass", "pass"],
        ),
        (
            SORTS_IN_PLACE,
            ("xs = [2, 1]\nys = xs\nassert f(xs, lambda x: x) == [1, 2]", "assert ys == [1, 2]"),
            ["pass", "pass"],
        ),
    ],
)
def test_tests_that_share_a_mutable_variable_run_in_one_process(
    sandbox: Sandbox, source: str, tests: tuple[str, ...], expected: list[str]
) -> None:
    report = run_asserts(sandbox, source, *tests, "one = 1\nassert one == 1")
    assert statuses(report) == [*expected, "pass"], report.tests
    assert [test.trusted for test in report.tests] == [False, False, True]


def test_definitions_that_cannot_change_are_made_in_both_processes(sandbox: Sandbox) -> None:
    tests = (
        "import math\nlimit = 3\npair = (limit, 'x')\nneg = lambda x: -x\ndef twice(x): return 2 * x + limit\n"
        "class Box:\n    size = 2\n    def __init__(self, x): self.x = x\nassert f(twice) == 5",
        "assert twice(1) == 5 and pair == (3, 'x') and neg(1) == -1 and Box(4).x == 4 and math.pi > 3 and f(None) == 1",
    )
    report = run_asserts(sandbox, "def f(g):\n    return g(1) if g else 1\n", *tests)
    assert statuses(report) == ["pass", "pass"], report.tests
    assert [test.trusted for test in report.tests] == [False, True]


# --- tests that reach no assertion ---


@pytest.mark.parametrize("form", ["asserts", "check", "tuple"])
def test_asserts_behind_a_main_guard_are_evaluated(sandbox: Sandbox, form: str) -> None:
    lines = "if __name__ == '__main__':\n    assert f(1) == 1\n    assert f(2) == 2\n"
    tests: str | tuple[str, ...] = (lines,) if form == "tuple" else lines
    if form == "check":
        tests = "def check(candidate):\n    " + lines.replace("\n", "\n    ").replace("f(", "candidate(")
        tests += "\nif '__main__' == __name__:\n    check(f)\n"
    wrong = sandbox.run(Program("def f(x): return None\n", tests, "f"))
    right = sandbox.run(Program("def f(x): return x\n", tests, "f"))
    assert (wrong.passed, right.passed, right.total) == (0, right.total, 1 if form == "tuple" else 2)
    assert right.trusted


@pytest.mark.parametrize("argument", ["", "lambda: 1"])
@pytest.mark.parametrize(
    "test",
    [
        "if f(ARGUMENT):\n    assert f() == 1",
        "assert_equal(f(ARGUMENT), 1)",
        "if False:\n    assert f(ARGUMENT) == 1",
    ],
)
def test_case_that_reaches_no_assertion_is_an_error(sandbox: Sandbox, test: str, argument: str) -> None:
    source = "def f(function=None): return []\ndef assert_equal(*a): pass\n"
    report = run_asserts(sandbox, source, test.replace("ARGUMENT", argument))
    assert [(test.status, test.message) for test in report.tests] == [("error", "no assertion was reached")]


@pytest.mark.parametrize(
    "test",
    [
        "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass",
        "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False",
        "import contextlib\nwith contextlib.suppress(ValueError):\n    f(-1)\n    assert False",
        "from unittest import TestCase\nt = TestCase()\nt.assertEqual(f(1), 1)",
    ],
)
def test_expected_exceptions_and_assert_functions_count_as_assertions(sandbox: Sandbox, test: str) -> None:
    source = "def f(x):\n    if x < 0: raise ValueError\n    return x\n"
    assert statuses(run_asserts(sandbox, source, test)) == ["pass"]
    assert statuses(run_asserts(sandbox, "def f(x): return 5\n", test)) == ["fail"]


# --- visible tests and the replay of state ---


def test_program_with_state_passes_all_tests_with_visible_tests(sandbox: Sandbox) -> None:
    source = "n = 0\ndef f(g=None):\n    global n\n    n += 1\n    return n\n"
    for call in ("f()", "f(lambda: 1)"):
        tests = tuple(f"assert {call} == {number}" for number in (1, 2, 3))
        for visible in (None, 1, 2):
            assert sandbox.run(Program(source, tests, "f", visible=visible)).passed == 3, visible


def test_replay_starts_after_the_last_test_that_ended_the_process(sandbox: Sandbox) -> None:
    source = "import os\nn = 0\ndef f(x):\n    global n\n    if x: os._exit(0)\n    n += 1\n    return n\n"
    tests = ("assert f(0) == 1", "assert f(1) == 0", "assert f(0) == 1", "assert f(0) == 2")
    for visible in (None, 1, 2, 3):
        report = sandbox.run(Program(source, tests, "f", visible=visible))
        assert statuses(report) == ["pass", "crash", "pass", "pass"], visible


def test_visible_part_has_no_definition_that_only_hidden_tests_need() -> None:
    check = (
        "def check(candidate):\n    shown = 'visible'\n    expected = 'hidden1'\n    table = {'k': ['hidden2']}\n"
        "    def helper(x): return 'hidden3'\n    assert candidate(lambda: 1) == shown\n"
        "    assert candidate(lambda: 2) == (expected, table, helper(1))\n"
    )
    visible = split_suite(check, "f", "auto", "", 1)[0].suite
    text = visible.cases[0].for_guest
    assert "shown = 'visible'" in text
    assert "hidden" not in text
    whole = parse_tests(check, "f", "auto", "")
    assert "hidden1" in whole.cases[0].for_guest
