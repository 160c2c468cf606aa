"""Helpers of the program that decide about the program's own result make a verdict untrusted, in every phrasing."""

from __future__ import annotations

import pytest

from marl_ray.sandbox import Program, Sandbox
from tests.sandbox.helpers import SHORT_LIMITS

FORGING = """
def f(x): return "wrong"
def close(*a): return True
def diff(*a): return 0
class Checker:
    tolerance = 1
    def ok(self, *a): return True
    def __call__(self, *a): return True
checker = Checker()
class Anything(dict):
    def __missing__(self, key): return True
table = Anything()
EXPECTED = f(1)
def reference(x): return f(x)
def last(a): return list(a)[-1]
def rest(a): return list(a)[1:]
def values(a): return list(a.values())[1]
"""
DECIDED = (
    "assert close(f(1), 2)",
    "assert close(2, f(1))",
    "assert not diff(f(1), 2)",
    "assert diff(f(1), 2) == 0",
    "assert [diff(f(1))] == [0]",
    "assert diff(f(1)) == 0",
    "ok = close(f(1), 2)\nassert ok",
    "got = f(1)\nassert close(got, 2)",
    "got = f(1)\nok = close(got, 2)\nassert ok is True",
    "assert [close(f(1), 2)] == [True]",
    "assert (close(f(1), 2), 1) == (True, 1)",
    "assert {'a': close(f(1), 2)} == {'a': True}",
    "assert all(map(close, [f(1)], [2]))",
    "assert all(close(a, b) for a, b in zip([f(1)], [2]))",
    "assert all([close(a, 2) for a in [f(1), f(2)]])",
    "assert sum(close(f(x), x) for x in (1, 2)) == 2",
    "assert str(close(f(1), 2)) == 'True'",
    "assert int(close(f(1), 2)) == 1",
    "assert len([x for x in (1, 2) if not close(f(x), x)]) == 0",
    "assert (True if close(f(1), 2) else False)",
    "passed = 1 if close(f(1), 2) else 0\nassert passed",
    "for x in (1, 2):\n    ok = close(f(x), x)\n    assert ok",
    "results = []\nfor x in (1, 2):\n    results.append(close(f(x), x))\nassert all(results)",
    "check_it = lambda a: close(a, 2)\nassert check_it(f(1))",
    "assert (lambda a: close(a, 2))(f(1))",
    "same = close\nassert same(f(1), 2)",
    "assert [close][0](f(1), 2)",
    "assert {'c': close}['c'](f(1), 2)",
    "assert Checker().ok(f(1), 2)",
    "c = Checker()\nassert c.ok(f(1))",
    "c = Checker()\nassert c(f(1))",
    "assert checker.ok(f(1))",
    "import functools\nassert functools.partial(close, 2)(f(1))",
    "import functools\nassert functools.reduce(close, [f(1), 2])",
    "def verify(a, b):\n    return close(a, b)\nassert verify(f(1), 2)",
    "def verify(judge, a):\n    return judge(a)\nassert verify(close, f(1))",
    "assert (ok := close(f(1), 2))",
    "if not close(f(1), 2):\n    assert False\nassert True == True",
    "try:\n    assert close(f(1), 2)\nexcept ZeroDivisionError:\n    pass",
    "assert table[f(1)]",
    "assert f(1) == EXPECTED",
    "assert f(1) == reference(1)",
    "xs = [f(1)]\nfor x in xs:\n    assert close(x)",
    "while not close(f(1), 2):\n    pass\nassert 1 == 1",
    "assert close(*[f(1), 2])",
    "class Own:\n    def same(self, a):\n        return close(a, 2)\nassert Own().same(f(1))",
    "class Own:\n    def __init__(self, a):\n        self.ok = close(a, 2)\nassert Own(f(1)).ok",
    "def own(a):\n    return close(a, 2)\nassert all(map(own, [f(1)]))",
    "assert all(map(lambda a: close(a, 2), [f(1)]))",
    "match f(1):\n    case found:\n        assert close(found, 2)",
    "try:\n    raise ValueError(f(1))\nexcept ValueError as error:\n    assert close(error.args[0], 2)",
    "import heapq\nheap = []\nheapq.heappush(heap, f(1))\nassert close(heap[0], 2)",
    "found = {}\nfound.update(a=f(1))\nassert close(found['a'], 2)",
    "assert len({f(1), reference(1)}) == 1",
    "pair = (f(1), reference(1))\nassert pair[0] == pair[1]",
    "assert f(1).startswith(reference(1))",
    "assert [f(1), 'x'].count(reference(1)) == 1",
    "assert {'a': f(1), 'b': reference(1)}['a'] == f(1)",
    "xs = []\nassert f(xs) == 'wrong' and close(xs)",
    "assert last([f(1), [4, 5]]) == [4, 5]",
    "assert last((f(1), (4, 5))) == (4, 5)",
    "assert rest([f(1), 4, 5]) == [4, 5]",
    "assert values({'got': f(1), 'want': [4, 5]}) == [4, 5]",
    "want = [4, 5]\nassert last([f(1), want]) == [4, 5]",
    "pair = (f(1), [4, 5])\nassert last(pair) == [4, 5]",
    "for args, want in [((1,), [4, 5])]:\n    assert last([f(*args), want]) == [4, 5]",
    "xs = rest(f(1))\nxs.append([4, 5])\nassert last(xs) == [4, 5]",
    "def check(xs):\n    assert last(xs) == [4, 5]\ncheck(f(1))\ncheck([4, 5])",
)
HONEST_PROGRAM = """
def f(x): return x + 1
def make(x): return [x]
class Node:
    def __init__(self, value, rest=None): self.value, self.rest = value, rest
def total(node): return 0 if node is None else node.value + total(node.rest)
"""
HONEST = (
    ("f", "assert f(1) == 2"),
    ("f", "got = [f(x) for x in (1, 2)]\nassert got == [2, 3]"),
    ("f", "assert all(f(x) == x + 1 for x in range(3))"),
    ("f", "import math\nassert math.isclose(f(1), 2)"),
    ("f", "def near(a, b):\n    return abs(a - b) < 1e-6\nassert near(f(1), 2)"),
    ("f", "assert f(f(1)) == 3"),
    ("total", "assert total(Node(1, Node(2))) == 3"),
    ("total", "n = None\nfor v in (1, 2):\n    n = Node(v, n)\nassert total(n) == 3"),
    ("f", "assert f(make(1)[0]) == 2"),
    ("f", "assert make(f(1)) == [2]"),
)


def run(sandbox: Sandbox, source: str, test: str, entry_point: str = "f") -> tuple[int, int]:
    report = sandbox.run(Program(source, (test,), entry_point, limits=SHORT_LIMITS))
    assert report.infra_error is None
    return report.passed, report.trusted_passed


@pytest.mark.parametrize("test", DECIDED)
def test_a_helper_that_decides_earns_no_trusted_pass(sandbox: Sandbox, test: str) -> None:
    assert run(sandbox, FORGING, test)[1] == 0


@pytest.mark.parametrize(("entry_point", "test"), HONEST)
def test_helpers_that_only_make_arguments_do_not_cost_trust(sandbox: Sandbox, entry_point: str, test: str) -> None:
    assert run(sandbox, HONEST_PROGRAM, test, entry_point) == (1, 1)


def test_a_helper_that_decides_in_a_unittest_class_earns_no_trusted_pass(sandbox: Sandbox) -> None:
    test = """
import unittest
class TestF(unittest.TestCase):
    def setUp(self):
        self.checker = Checker()
    def test_function(self):
        self.assertTrue(close(f(1), 2))
    def test_method(self):
        ok = self.checker.ok(f(1))
        self.assertEqual(ok, True)
    def test_constant(self):
        self.assertEqual(f(1), EXPECTED)
    def test_honest(self):
        self.assertEqual(f(1), "wrong")
"""
    report = sandbox.run(Program(FORGING, test, "f", limits=SHORT_LIMITS))
    assert [result.trusted for result in report.tests] == [False, False, False, True]


SHELF = """
class Shelf:
    def __init__(self):
        self.items = None
    def first(self):
        return self.items[0] if self.items else None

def load(name):
    return [name]

def same(x, y):
    return True
"""


def test_a_value_of_a_helper_in_an_object_under_test_costs_only_what_the_helper_decides(sandbox: Sandbox) -> None:
    test = """
import unittest
class TestShelf(unittest.TestCase):
    def setUp(self):
        self.shelf = Shelf()
    def test_loaded(self):
        self.shelf.items = load("a")
        self.assertEqual(self.shelf.first(), "a")
    def test_empty(self):
        self.assertIsNone(self.shelf.first())
    def test_helper_as_a_method(self):
        self.shelf.same = same
        self.assertTrue(self.shelf.same(self.shelf.first(), "wrong"))
"""
    report = sandbox.run(Program(SHELF, test, "Shelf", limits=SHORT_LIMITS))
    assert [result.trusted for result in report.tests] == [True, True, False]
