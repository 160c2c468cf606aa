"""Verdicts that rest on an answer of the program are not trusted, and nothing of a session outlives it."""

from __future__ import annotations

import pytest

from marl_ray.sandbox import ExecutionReport, Program, Sandbox
from tests.sandbox.helpers import run_asserts, statuses

AGREEABLE = """
class Any:
    def agree(self, *others):
        return True
    __eq__ = __lt__ = __gt__ = __contains__ = agree
    def same(self, *others):
        return self
    __sub__ = __rsub__ = __add__ = __mul__ = __abs__ = same
def f(x):
    return Any()
def allclose(left, right):
    return True
is_close = allclose
class np:
    allclose = staticmethod(allclose)
    class testing:
        assert_allclose = staticmethod(allclose)
"""
"""A program whose objects and helpers agree with everything."""


def verdicts(report: ExecutionReport) -> list[tuple[str, bool]]:
    return [(test.status, test.trusted) for test in report.tests]


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) - f(2) < f(3)",
        "assert abs(f(1) - f(2))",
        "x = f(1)\ny = f(2)\nz = x + y\nassert z",
        "assert allclose(f(1), [5])",
        "assert is_close(f(1), 5) and f(2) is not None",
        "assert is_close(f(1), 5) == True",
        "assert all(is_close(f(x), x) for x in range(3))",
        "assert np.allclose(f(1), [5])",
        "np.testing.assert_allclose(f(1), [5])\nassert f(1) is not None",
        "assert Any() == 5",
        "assert 5 == Any()",
        "try:\n    f(1) - 3\n    ok = True\nexcept TypeError:\n    ok = False\nassert ok",
    ],
)
def test_a_pass_on_the_program_s_word_is_not_trusted(sandbox: Sandbox, test: str) -> None:
    assert verdicts(run_asserts(sandbox, AGREEABLE, test)) == [("pass", False)]


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == 5",
        "assert 5 == f(1)",
        "assert f(1) in [5]",
        "assert abs(f(1) - 5) < 1e-6",
        "assert 5 in f(1)",
        "assert f(1) == None",
        "assert f(1) == {'a': 1}",
    ],
)
def test_an_agreeable_result_passes_no_comparison_with_plain_data(sandbox: Sandbox, test: str) -> None:
    assert "pass" not in statuses(run_asserts(sandbox, AGREEABLE, test))


@pytest.mark.parametrize("test", ["assert f([1]) == [1]", "assert g(f([2])) == [2]", "assert f(True)"])
def test_helpers_whose_results_the_judge_compares_stay_trusted(sandbox: Sandbox, test: str) -> None:
    source = "def f(x):\n    return x\ndef g(x):\n    return x\n"
    assert verdicts(run_asserts(sandbox, source, test)) == [("pass", True)]


@pytest.mark.parametrize(
    ("source", "make"),
    [
        ("class T:\n    def get(self): return 1\ndef f(): return T()\n", "kind = type(f())"),
        ("class T(list): pass\ndef f(): return T()\n", "kind = type(f())"),
        (
            "class T(ValueError): pass\ndef f(): raise T()\n",
            "try:\n    f()\nexcept ValueError as error:\n    kind = type(error)",
        ),
    ],
    ids=["object", "list", "exception"],
)
def test_attributes_of_classes_do_not_outlive_their_program(sandbox: Sandbox, source: str, make: str) -> None:
    sets = Program(source, (f"{make}\nkind.left = 5\nassert kind.left == 5",), "f")
    reads = Program(source, (f"{make}\nassert not hasattr(kind, 'left')",), "f")
    assert [statuses(report) for report in sandbox.run_batch([sets, reads])] == [["pass"], ["pass"]]


def test_a_mapping_of_the_library_is_compared_by_its_items(sandbox: Sandbox) -> None:
    source = "from types import MappingProxyType\ndef f(x):\n    return MappingProxyType(x)\n"
    report = run_asserts(sandbox, source, "assert f({'a': 1}) == {'a': 1}", "assert f({'a': 1}) == {'a': 2}")
    assert verdicts(report) == [("pass", True), ("fail", True)]


def test_a_library_exception_of_the_program_skips_no_test(sandbox: Sandbox) -> None:
    source = "import unittest\ndef f():\n    raise unittest.SkipTest('no')\n"
    report = run_asserts(
        sandbox, source, "import unittest\ntry:\n    f()\nexcept unittest.SkipTest:\n    pass\nassert 1 == 1"
    )
    assert statuses(report) == ["error"]


def test_a_later_definition_of_the_tests_replaces_the_program_s(sandbox: Sandbox) -> None:
    source = "def double(x):\n    return 2 * x\ndef f(fn, x):\n    return fn(x)\n"
    report = run_asserts(
        sandbox, source, "def double(x):\n    return 20 * x\nassert double(1) == 20", "assert f(double, 3) == 60"
    )
    assert statuses(report) == ["pass", "pass"]


OBJECTS = """
import array, pathlib, types, uuid
class Agreeable(types.SimpleNamespace):
    def __eq__(self, other):
        return True
class Pretender(Agreeable):
    pass
Pretender.__module__, Pretender.__qualname__ = "types", "SimpleNamespace"
def f(x):
    return Agreeable(a=x)
def pretend(x):
    return Pretender(a=x)
def space(x):
    return types.SimpleNamespace(a=x)
path, numbers, frozen = pathlib.PurePosixPath, lambda xs: array.array("i", xs), types.MappingProxyType
def number(n):
    return uuid.UUID(int=n)
def keys(d):
    return d.keys()
"""


@pytest.mark.parametrize(
    ("call", "equal", "other"),
    [
        ("space(1)", "types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)"),
        ("pretend(1)", "types.SimpleNamespace(a=1)", "types.SimpleNamespace(a=2)"),
        ("path('/a')", "pathlib.PurePosixPath('/a')", "pathlib.PurePosixPath('/b')"),
        ("number(3)", "uuid.UUID(int=3)", "uuid.UUID(int=4)"),
        ("numbers([1])", "array.array('i', [1])", "array.array('i', [2])"),
        ("keys({1: 2})", "{1}", "{2}"),
        ("frozen({1: 2})", "{1: 2}", "{1: 3}"),
    ],
)
def test_the_judge_compares_objects_of_library_classes_by_content(
    sandbox: Sandbox, call: str, equal: str, other: str
) -> None:
    imports = "import array, pathlib, types, uuid\n"
    tests = [f"assert {call} == {equal}", f"assert {call} != {other}", f"assert {equal} == {call}"]
    tests += [f"assert {call} == {other}", f"assert {call} != {equal}"]
    report = run_asserts(sandbox, OBJECTS, *(imports + test for test in tests))
    assert verdicts(report) == [("pass", True)] * 3 + [("fail", True)] * 2


def test_objects_of_the_program_s_own_classes_are_not_compared(sandbox: Sandbox) -> None:
    tests = ("assert f(1) == types.SimpleNamespace(a=1)", "assert space(f(1)) == types.SimpleNamespace(a=2)")
    report = run_asserts(sandbox, OBJECTS, *(f"import types\n{test}" for test in tests))
    assert verdicts(report) == [("error", True)] * 2


def test_a_test_s_subclass_of_a_program_s_class_exists_in_the_program_s_process(sandbox: Sandbox) -> None:
    tests = ("class Own(Agreeable):\n    pass\nassert Own.__name__ == 'Own'", "assert Own.__bases__[0] is Agreeable")
    assert verdicts(run_asserts(sandbox, OBJECTS, *tests, "assert space(2).a == 2")) == [
        ("pass", False),
        ("pass", False),
        ("pass", True),
    ]
