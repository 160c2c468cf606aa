"""Which tests the judge evaluates itself, for one problem after another, and which get a process of their own."""

# ruff: noqa: E501 (lines of the tests)
from __future__ import annotations

import ast

import pytest

from marl_ray.sandbox.inside.suites.lasting_effects import leaves_nothing
from marl_ray.sandbox.inside.suites.suite_parser import parse_tests

HARMLESS = (
    "assert f(1) == 2",
    "xs = [1, 2]\nf(xs)\nassert xs == [2] and sorted(xs, key=lambda x: -x)[0] == 2",
    "import math\nassert math.isclose(f(1), 0.5) and math.pi > f(2)",
    "from collections import Counter, deque\nassert f('aab') == Counter('aab') and list(deque([1])) == f(1)",
    "assert isclose(f(1), 2.0) and Counter(f(1)) == {1: 2}",
    "def close(a, b, eps=1e-6):\n    return abs(a - b) < eps\nassert close(f(1), 2)",
    "try:\n    f(-1)\nexcept ValueError as error:\n    assert 'negative' in str(error) and error.args\nelse:\n    assert False",
    "for x, y in [(1, 2)]:\n    assert f(x) == y, f'{x!r}: {y:>3}'",
    "assert type(f(1)) is list and isinstance(f(1), list) and [*map(str, f(1))] == ['1']",
    "from typing import List\nassert f(1) == 2",
    "import datetime\nassert f(1) == datetime.date(2024, 1, 1) + datetime.timedelta(days=1)",
    "assert f(1).name == 'x' and f(1).total() == 3",
)
HARMFUL = (
    # text as code, and names of attributes as text
    *(
        "assert eval(f(1)) == 2",
        "exec(f(1))\nassert f(1)",
        "assert compile(f(1), '', 'eval')",
        "e = eval\nassert e(f(1))",
    ),
    *(
        "assert list(map(eval, f(1)))",
        "assert __import__('os')",
        "assert globals()",
        "assert getattr(f, 'x')",
        "assert vars(f)",
    ),
    *("setattr(f, 'x', 1)\nassert f(1)", "assert (lambda: 0).__globals__", "assert ''.__class__", "assert open('x')"),
    *(
        "assert (x for x in []).gi_frame",
        "def g(e):\n    return e.tb_frame.f_globals\nassert g(f(1))",
        "assert f(1).f_back",
    ),
    "import operator\nassert operator.attrgetter('__globals__')(f)",
    "from string import Formatter\nassert Formatter().get_field('0.__globals__', (f,), {})",
    "import functools\nassert functools.update_wrapper(f, f)",
    "import pickle\nassert pickle.loads(f(1))",
    # names that mean something else elsewhere
    "def g(eval):\n    return eval\nassert eval(f(1)) == 2",
    "def g(get_type_hints):\n    pass\nfrom typing import get_type_hints\nassert get_type_hints(f)",
    "import functools as math\nassert math.wraps(f)",
    "import functools\ng = functools\nassert g.wraps(f)",
    # classes and suspended functions, which may be finalised later
    "class A:\n    def __del__(self):\n        pass\nassert f(A())",
    "assert type('A', (), {})() != f(1)",
    "t = type(int)\nassert t('A', (), {})() != f(1)",
    "assert type(*['A', (), {}]) != f(1)",
    "def g():\n    try:\n        yield 1\n    finally:\n        f(2)\nassert next(g()) == 1",
    "with f(1) as x:\n    assert x",
    # state of the process, and of libraries
    "import collections\ncollections.Counter.x = 1\nassert f(1)",
    "from collections import Counter\nCounter.__eq__ = lambda a, b: True\nassert f(1)",
    "from fractions import Fraction\nFraction.register(int)\nassert isinstance(f(1), Fraction)",
    "import decimal\ndecimal.getcontext().prec = 1\nassert f(1)",
    "import random\nrandom.seed(1)\nassert f(1)",
    "import sys\nsys.setrecursionlimit(50)\nassert f(1)",
    "import os\nos.environ['A'] = '1'\nassert f(1)",
    "import threading\nassert f(1)",
    "import json\njson.loads = None\nassert f(1)",
    "from math import *\nassert sqrt(f(1)) == 1",
    "__sandbox_compare__ = lambda *a: True\nassert f(1) == 2",
    "assert sys.path",
    "f.x = 1\nassert f(1)",
)


@pytest.mark.parametrize("test", HARMLESS)
def test_the_judge_evaluates_tests_that_leave_nothing(test: str) -> None:
    assert parse_tests((test,), "f").leaves_nothing


@pytest.mark.parametrize("test", HARMFUL)
def test_other_tests_get_a_process_of_their_own(test: str) -> None:
    assert not parse_tests((test, "assert f(1) == 1"), "f").leaves_nothing


def test_helpers_of_the_prompt_count_too() -> None:
    assert parse_tests(("assert f(1) == g(2)",), "f", prompt="def g(x):\n    return x\ndef f(x): ...").leaves_nothing
    harmful = "import os\ndef g(x):\n    return os.environ\ndef f(x): ..."
    assert not parse_tests(("assert f(1) == g(2)",), "f", prompt=harmful).leaves_nothing


CLASS = "import unittest\nclass T(unittest.TestCase):\n"
HARMLESS_CLASSES = (
    CLASS + "    def test_a(self):\n        self.assertEqual(f(1), 2)\n",
    CLASS
    + "    limit = 3\n    def setUp(self):\n        self.x = C(1)\n    def test_a(self):\n        self.assertEqual(self.x.size(), self.limit)\n",
    CLASS
    + "    def test_a(self):\n        with self.assertRaises(ValueError) as caught:\n            f(-1)\n        self.assertIn('no', str(caught.exception))\n",
    CLASS
    + "    @classmethod\n    def setUpClass(cls):\n        cls.x = f(1)\n    def test_a(self):\n        self.assertTrue(self.x)\n",
    CLASS
    + "    def check(self, x):\n        self.assertTrue(x)\n    def test_a(self):\n        self.check(f(1))\nclass U(T):\n    def test_b(self):\n        pass\n",
    "from unittest import TestCase\nclass T(TestCase):\n    def test_a(self):\n        for x in (1, 2):\n            with self.subTest(x=x):\n                self.assertEqual(f(x), x)\n",
)
TEST = "    def test_a(self):\n        self.assertEqual(f(1), 1)\n"
HARMFUL_CLASSES = (
    CLASS + TEST + "    def __del__(self):\n        f(2)\n",
    CLASS + TEST + "    __del__ = print\n",
    CLASS + TEST + "    if True:\n        def __del__(me):\n            f(2)\n",
    "from collections import Counter\n" + CLASS + "    def test_a(self):\n        Counter.x = 1\n",
    "from collections import Counter\n" + CLASS + "    def set(self):\n        self.x = 1\n    def test_a(self):\n        T.set(Counter)\n",
    "from collections import Counter\n" + CLASS + "    def set(self):\n        self.x = 1\n    every = [set]\n    def test_a(self):\n        self.every[0](Counter)\n",
    "from collections import Counter\n" + CLASS + "    def set(self):\n        self.x = 1\n    @classmethod\n    def setUpClass(cls):\n        cls.set(Counter)\n" + TEST,
    "from collections import Counter\n" + CLASS + "    def set(self):\n        self.x = 1\n    @classmethod\n    def setUpClass(cls):\n        c = cls\n        c.set(Counter)\n" + TEST,
    "from collections import Counter\n" + CLASS + "    @staticmethod\n    def set(self):\n        self.x = 1\n    def test_a(self):\n        self.set(Counter)\n",
    "from collections import Counter\n" + CLASS + "    def set(other, /, self):\n        self.x = 1\n    def test_a(self):\n        self.set(Counter)\n",
    "from collections import Counter\n" + CLASS + "    def set(other, self):\n        self.x = 1\n    def test_a(self):\n        self.set(Counter)\n",
    "from collections import Counter\n" + CLASS + "    def test_a(self):\n        def g(self):\n            self.x = 1\n        g(Counter)\n",
    "from collections import Counter\n" + CLASS + "    def test_a(self):\n        for self in [Counter]:\n            self.x = 1\n",
    "from collections import Counter as self\n" + CLASS + TEST + "self.x = 1\n",
    "import math as self\n" + CLASS + TEST + "self.pi = 1\n",
    "def deco(g):\n    return g\n" + CLASS + "    @deco\n    def test_a(self):\n        self.assertEqual(f(1), 1)\n",
    "import unittest\nfrom collections import Counter\nunittest.skip('x')(Counter)\n" + CLASS + TEST,
    "import unittest\nunittest.TestCase.maxDiff = None\n" + CLASS + TEST,
    "import unittest\nunittest.TestCase.addClassCleanup(f)\n" + CLASS + TEST,
    CLASS + "    def test_a(self):\n        with self.assertLogs():\n            f(1)\n",
    CLASS + "    def test_a(self):\n        with f(1):\n            pass\n",
    "from unittest.mock import patch\n" + CLASS + "    @patch('math.pi', 3)\n    def test_a(self, pi):\n        f(1)\n",
    "class M(type):\n    pass\nimport unittest\nclass T(unittest.TestCase, metaclass=M):\n" + TEST,
    "class TestCase:\n    def __del__(self):\n        pass\nclass T(TestCase):\n" + TEST,
)  # fmt: skip


@pytest.mark.parametrize("source", HARMLESS_CLASSES)
def test_the_judge_evaluates_unittest_classes_that_leave_nothing(source: str) -> None:
    assert parse_tests(source, "f").leaves_nothing


@pytest.mark.parametrize("source", HARMFUL_CLASSES)
def test_other_unittest_classes_get_a_process_of_their_own(source: str) -> None:
    assert not leaves_nothing(ast.parse(source).body, {"f"}, {})


def test_no_process_is_needed_if_all_tests_run_in_the_guest() -> None:
    suite = parse_tests(("assert eval(f(1)) == 2",), "f")
    assert (bool(suite.cases[0].in_guest), suite.leaves_nothing) == (True, True)
