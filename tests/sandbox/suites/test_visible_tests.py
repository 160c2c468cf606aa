"""Visible tests, which feedback shows, run first and separately from hidden tests."""

from __future__ import annotations

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox
from marl_ray.sandbox.inside.suites.suite_parser import split_suite
from tests.sandbox.datasets import humaneval, load
from tests.sandbox.helpers import statuses

SHORT = Limits(test_cpu_s=0.3, test_wall_s=2.0, program_wall_s=8.0, max_timeouts=1, max_crashes=1)

REVEALS_INPUTS = """
seen = []
def f(x):
    seen.append(x)
    raise ValueError(f"seen {seen}")
"""
LOOPS_ON_ONE = """
def f(x):
    while x == 1:
        pass
    return x
"""


@pytest.mark.parametrize("form", ["asserts", "check", "guest", "unittest"])
@pytest.mark.parametrize("visible", [-1, -2, 1, 2])
def test_program_with_state_cannot_reveal_hidden_tests(sandbox: Sandbox, form: str, visible: int) -> None:
    asserts = [f"assert f('input{number}') == 0" for number in range(4)]
    tests: str | tuple[str, ...] = tuple(asserts)
    if form == "check":
        tests = "def check(candidate):\n    import math\n" + "".join(f"    {line}\n" for line in asserts)
        tests = tests.replace(" f(", " candidate(")
    elif form == "guest":
        tests = tuple(f"assert f(lambda: 'input{number}') == 0" for number in range(4))
    elif form == "unittest":
        methods = (f"    def test_{number}(self): {line}\n" for number, line in enumerate(asserts))
        tests = "import unittest\nclass A(unittest.TestCase):\n" + "".join(methods)
    source = REVEALS_INPUTS.replace("seen.append(x)", "seen.append(x() if callable(x) else x)")
    report = sandbox.run(Program(source, tests, "f", visible=visible))
    shown = range(4)[:visible] if visible > 0 else range(4)[visible:]
    told = " ".join(report.tests[number].message or "" for number in shown)
    assert [number for number in range(4) if f"input{number}" in told] == list(shown)
    assert [
        f"input{number}" in test.source or f"test_{number}" in test.source for number, test in enumerate(report.tests)
    ] == [True] * 4, "verdicts are in the tests' order"


UNITS = """
import unittest
class Base(unittest.TestCase):
    limit = 3
    def setUp(self): self.one = f(0) and 1
    def helped(self, x): self.assertEqual(f(x), x)
    def test_base(self): self.helped("hidden base")
class A(Base):
    def test_first(self): self.helped(self.one)
    def test_second(self): self.assertEqual(f("hidden second"), "hidden second")
    @unittest.skipIf(f is None, "hidden reason")
    def test_third(self): self.helped("hidden third")
class B(unittest.TestCase):
    table = ["hidden table"]
    def test_fourth(self): self.assertEqual([f(x) for x in self.table], self.table)
class C(A):
    def test_fifth(self): self.test_first()
"""
SEARCHES_MEMORY = """
import gc, types
def f(x):
    found = [o.co_consts for o in gc.get_objects() if isinstance(o, types.CodeType)]
    found += [o.__code__.co_consts for o in gc.get_objects() if isinstance(o, types.FunctionType)]
    found += [vars(o) for o in gc.get_objects() if isinstance(o, type)]
    found = [s for s in map(str, found) if "hidden" in s and "gc" not in s]
    return f"found {found}" if found else x or 1
"""


@pytest.mark.parametrize("visible", [1, -1])
def test_guest_does_not_contain_the_source_of_hidden_unittest_methods(sandbox: Sandbox, visible: int) -> None:
    tests = UNITS.replace('self.helped("hidden base")', "self.helped(self.one)") if visible == 1 else UNITS
    report = sandbox.run(Program(SEARCHES_MEMORY, tests, "f", visible=visible))
    shown = report.tests[0 if visible == 1 else -1]
    assert (shown.source, shown.status) == ("Base.test_base" if visible == 1 else "C.test_fifth", "pass"), shown.message
    assert report.passed < report.total, "the program finds the hidden tests in the other part"
    report = sandbox.run(Program("def f(x): return x\n", tests, "f", visible=visible))
    assert report.passed == report.total == 11


def test_hidden_tests_do_not_use_up_the_budget_of_visible_tests(sandbox: Sandbox) -> None:
    tests = tuple(f"assert f({number}) == {number}" for number in (1, 1, 2, 3))
    before = sandbox.run(Program(LOOPS_ON_ONE, tests, "f", limits=SHORT))
    assert statuses(before) == ["timeout", "skipped", "skipped", "skipped"]
    report = sandbox.run(Program(LOOPS_ON_ONE, tests, "f", limits=SHORT, visible=-1))
    assert statuses(report) == ["timeout", "skipped", "skipped", "pass"]
    report = sandbox.run(Program(LOOPS_ON_ONE, (*tests[2:], *tests[:2]), "f", limits=SHORT, visible=-1))
    assert statuses(report) == ["pass", "pass", "timeout", "timeout"], (
        "visible tests do not use up the budget of hidden tests"
    )


def test_shared_definitions_and_variables_exist_in_both_parts(sandbox: Sandbox) -> None:
    """Check imports, helpers, constants and variables, and changes to them, as if all tests had run in order."""
    source = "def f(xs, x):\n    xs.append(x)\n    return xs\n"
    tests = (
        "def check(candidate):\n    from math import floor\n    def total(xs):\n        return floor(sum(xs))\n"
        "    one = 1\n    assert candidate([], one) == [one]\n    xs = [5]\n    assert candidate(xs, 1) == [5, 1]\n"
        "    xs.pop(0)\n    assert total(candidate(xs, 2)) == 3\n    ys = xs\n    assert ys == [1, 2]\n"
        "    assert floor(one) == 1\n"
    )
    for visible in (None, 1, 2, 3, 4, -1, -2, -3, -4, 9):
        report = sandbox.run(Program(source, tests, "f", visible=visible))
        assert statuses(report) == ["pass"] * 5, (visible, report.tests)
    for visible in (None, 1, -1):
        report = sandbox.run(Program(source.replace("append(x)", "append(x + 1)"), tests, "f", visible=visible))
        assert statuses(report) == ["fail", "fail", "fail", "fail", "pass"], visible


def test_parts_contain_only_needed_statements_of_other_tests() -> None:
    tests = (
        "def check(candidate):\n    import math\n    xs = [1]\n    assert candidate(xs) == 'hidden1'\n"
        "    ys = candidate('hidden2')\n    for x in ys:\n        assert candidate(x) == 'hidden3'\n"
        "    for x in [1]:\n        assert candidate(x) == math.floor(2)\n"
    )
    (numbers, first), (_, rest) = split_suite(tests, "f", "auto", "", -1)
    assert numbers == (2,)
    assert "hidden" not in first.cases[0].plain
    assert "import math" in first.cases[0].plain
    assert "candidate = f" in first.cases[0].plain
    assert [case.source for case in rest.cases] == [
        case.source for case in split_suite(tests, "f", "auto", "", 0)[0][1].cases[:2]
    ]


def test_visible_is_part_of_a_programs_key_and_json() -> None:
    program = Program("def f(x): return x\n", ("assert f(1) == 1",), "f", visible=-1)
    assert Program.from_dict(program.to_dict()) == program
    assert program.key != Program(program.source, program.tests, "f").key
    with pytest.raises(ValueError, match="'visible' must be an integer or null"):
        Program.from_dict({**program.to_dict(), "visible": "all"})


def test_stdio_tests_can_be_split(sandbox: Sandbox) -> None:
    pairs = tuple(f'{{"stdin": "{n}\\n", "stdout": "{n}\\n"}}' for n in (1, 2, 3))
    source = "n = int(input())\nwhile n == 1: pass\nprint(n)\n"
    report = sandbox.run(Program(source, pairs, "", form="stdio", limits=SHORT, visible=-1))
    assert statuses(report) == ["timeout", "skipped", "pass"]


def test_programs_that_do_not_compile_get_a_verdict_on_every_test(sandbox: Sandbox) -> None:
    tests = tuple(f"assert f({number}) == {number}" for number in range(3))
    for source in ("def f(x: return x\n", "x = 1\n" * 20_000 + "def f(x: return x\n"):
        report = sandbox.run(Program(source, tests, "f", visible=-1))
        assert statuses(report) == ["error"] * 3
        assert report.syntax_error is not None


@pytest.mark.parametrize("visible", [1, -1, -3])
def test_canonical_solutions_pass_with_any_split_of_the_tests(sandbox: Sandbox, visible: int) -> None:
    programs = list(humaneval().values())
    for program in programs:
        whole = split_suite(program.tests, program.entry_point, "auto", program.prompt, None)[0][1]
        parts = split_suite(program.tests, program.entry_point, "auto", program.prompt, visible)
        sources = {n: case.source for numbers, suite in parts for n, case in zip(numbers, suite.cases, strict=True)}
        assert [sources[n] for n in sorted(sources)] == [case.source for case in whole.cases]
    some = [Program(p.source, p.tests, p.entry_point, p.prompt, visible=visible) for p in programs[::4]]
    assert [report.passed for report in sandbox.run_batch(some)] == [report.total for report in sandbox.run_batch(some)]


@pytest.mark.slow
def test_every_suite_of_mbpp_can_be_split() -> None:
    for row in load("mbpp"):
        tests = tuple(row["test_list"])
        name = tests[0].split("assert")[1].strip(" (").split("(")[0] if "assert" in tests[0] else "f"
        parts = split_suite(tests, name if name.isidentifier() else "f", "asserts", "", -1)
        assert sorted(n for numbers, _ in parts for n in numbers) == list(range(len(tests)))
