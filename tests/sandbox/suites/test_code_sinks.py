"""A test that may run text of the program as code runs in the program's process, and its passes are untrusted."""

from __future__ import annotations

import pytest

from marl_ray.sandbox import Program, Sandbox
from marl_ray.sandbox.inside.suites.suite_parser import parse_tests
from tests.sandbox.helpers import SHORT_LIMITS

REACHED = (
    "assert eval(f(1)) == 2",
    "exec(f(1))\nassert f(1)",
    "exec(compile(f(1), '', 'exec'))\nassert f(2) == 2",
    "assert eval(compile(f(1), '', 'eval')) == 2",
    "e = eval\nassert e(f(1)) == 2",
    "e = [eval]\nassert e[0](f(1)) == 2",
    "assert list(map(eval, f(1))) == [2]",
    "assert [eval(x) for x in f(1)] == [2]",
    "import functools\nassert functools.partial(eval)(f(1)) == 2",
    "assert sorted(f(1), key=eval) == [1]",
    "from pickle import *\nassert loads(f(1)) == 2",
    "assert __import__('pickle').loads(f(1)) == 2",
    "assert eval('eval')(f(1)) == 2",
    "import dataclasses\nassert dataclasses.builtins.eval(f(1)) == 2",
    "import enum\nassert enum.bltns.eval(f(1)) == 2",
    "assert print.__self__.eval(f(1)) == 2",
    "from builtins import eval as e\nassert e(f(1)) == 2",
    "import builtins as b\nassert b.eval(f(1)) == 2",
    "import builtins\nassert getattr(builtins, 'ev' + 'al')(f(1)) == 2",
    "assert __builtins__['eval'](f(1)) == 2",
    "def ev(s):\n    return eval(s)\nassert ev(f(1)) == 2",
    "ev = lambda s: eval(s)\nassert ev(f(1)) == 2",
    "class E:\n    def run(self, s):\n        return eval(s)\nassert E().run(f(1)) == 2",
    "assert __import__(f(1)).pi > 3",
    "import importlib\nassert importlib.import_module(f(1))",
    "import pickle\nassert pickle.loads(f(1)) == 2",
    "from pickle import loads\nassert loads(f(1)) == 2",
    "import pickle as p\nload = p.loads\nassert load(f(1)) == 2",
    "import marshal\nassert marshal.loads(f(1))",
    "import shelve\nassert shelve.open(f(1))",
    "import timeit\nassert timeit.timeit(f(1), number=1) < 9",
    "import runpy\nassert runpy.run_path(f(1))",
    "import numpy as np\nassert np.load(f(1), allow_pickle=True)",
    "import pandas as pd\nassert pd.eval(f(1)) == 2",
    "import pandas as pd\nassert pd.DataFrame({'a': [1]}).query(f(1)).size == 1",
    "from pandas import DataFrame\nd = DataFrame({'a': [1]})\nassert d.eval(f(1)).size == 1",
    "import pandas.core as core\nd = core.frame()\nassert d.query(f(1)).size == 1",
    "import numpy as np\nassert np.lib.npyio.load(f(1))",
    "import sys\nassert sys.modules[f(1)]",
    "assert getattr(print, f(1))",
    "globals()[f(1)] = lambda *a: True\nassert f(2)",
    "vars()['x'] = f(1)\nassert f(2)",
    "from unittest import mock\nwith mock.patch(f(1)):\n    assert f(2)",
    "import code\nassert code.InteractiveInterpreter().runsource(f(1)) is False",
    "import yaml\nassert yaml.load(f(1), yaml.Loader) == 2",
    "import operator\nassert operator.attrgetter(f(1))(print)",
)
WITH_A_PACKAGE = (
    "import sympy\nassert sympy.sympify(f(1)) == 2",
    "import sympy\nx = f(1)\nassert sympy.sympify(x) == 2",
    "import sympy.parsing as parsing\nassert parsing.parse_expr(f(1)) == 2",
    "from sympy import sympify as read\nassert read(f(1)) == 2",
    "import sympy\nread = sympy.sympify\nassert read(f(1)) == 2",
    "import sympy\ndef check(x):\n    return sympy.sympify(x)\nassert check(f(1)) == 2",
    "import sympy\nassert list(map(sympy.sympify, [f(1)])) == [2]",
    "import numexpr\nassert numexpr.evaluate(f(1)) == 2",
    "import torch\nassert torch.load(f(1)) == 2",
)
"""Tests that pass a value of the program to a package that may run it as code."""
HARMLESS = (
    "import sympy\nassert f(1) == 2",
    "import sympy\nassert f(1) == int(sympy.Integer(2))",
    "import scipy.special\nassert scipy.special.erf(f(1)) == 2",
    "import pytest\nassert f(1) == pytest.approx(2)",
    "assert f(1) == eval('1 + 1')",
    "import re\nassert re.compile('a').match(f(1))",
    "assert getattr(f(1), 'real') == 2",
    "import ast\nassert ast.literal_eval(f(1)) == 2",
    "import json\nassert json.loads(f(1)) == 2",
    "import numpy as np\nimport json\nassert json.load(f(1)) == 2",
    "db = f(1)\nassert db.query('a') == [1]",
    "import copy\nassert copy.deepcopy(f(1)) == 2",
)


@pytest.mark.parametrize("test", REACHED + WITH_A_PACKAGE)
def test_a_test_with_a_sink_runs_in_the_guest(test: str) -> None:
    *_, last = parse_tests((test,), "f").cases
    assert last.in_guest


@pytest.mark.parametrize("test", HARMLESS)
def test_a_test_without_one_runs_in_the_judge(test: str) -> None:
    *_, last = parse_tests((test,), "f").cases
    assert not last.in_guest


def test_a_function_of_an_earlier_test_that_calls_a_sink_is_one() -> None:
    suite = parse_tests(("def ev(s):\n    return eval(s)\nassert f(1) == 1", "assert ev(f(2)) == 2"), "f")
    assert [bool(case.in_guest) for case in suite.cases] == [True, True]


def test_a_function_of_the_prompt_that_calls_a_sink_is_one() -> None:
    prompt = "def ev(s):\n    return eval(s)\n\ndef f(x):\n    pass\n"
    (case,) = parse_tests(("assert ev(f(2)) == 2",), "f", prompt=prompt).cases
    assert case.in_guest


def test_text_that_a_test_evaluates_does_not_change_the_judge(sandbox: Sandbox) -> None:
    """Return text that replaces the judge's comparison, in its globals and in its class."""
    attacks = (
        "globals().__setitem__('__sandbox_compare__', lambda *a: True) or 2",
        "[m for n, m in __import__('sys').modules.items() if n.endswith('assert_evaluator')][0]"
        ".AssertEvaluator.__setattr__('compare', lambda *a: True) or 2",
    )
    for text in attacks:
        program = f"def f(x): return {text!r}\ndef g(x): return 'wrong'"
        tests = ("assert eval(f(1)) == 2", "assert g(5) == 'right'", "assert g(6) == 'right'")
        report = sandbox.run(Program(program, tests, "f", limits=SHORT_LIMITS))
        assert report.trusted_passed == 0
        later = sandbox.run(Program("def f(x): return 'wrong'", ("assert f(1) == 'right'",), "f", limits=SHORT_LIMITS))
        assert later.passed == 0
