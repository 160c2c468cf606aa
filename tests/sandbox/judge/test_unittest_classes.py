"""unittest classes: the judge evaluates them as CPython does, and no answer of the program passes a test."""

from __future__ import annotations

import textwrap

import pytest

from marl_ray.sandbox import ExecutionReport, Limits, Program, Sandbox
from marl_ray.sandbox.inside.suites.suite_parser import parse_tests, split_suite
from tests.sandbox.helpers import statuses

STACK = """
class StackError(Exception):
    pass
class Stack:
    made = 0
    def __init__(self, items=()):
        Stack.made += 1
        self.items = list(items)
    def push(self, x):
        self.items.append(x)
        return self
    def pop(self):
        if not self.items:
            raise IndexError("empty stack")
        return self.items.pop()
    def each(self, function):
        return [function(x) for x in self.items]
    def fail(self):
        raise StackError("failed")
    def __eq__(self, other):
        return isinstance(other, Stack) and self.items == other.items
    def __add__(self, other):
        return Stack(self.items + other.items)
    def __contains__(self, x):
        return x in self.items
    def __len__(self):
        return len(self.items)
    def show(self):
        print(self.items)
"""


def run(
    sandbox: Sandbox, body: str, source: str = STACK, head: str = "", visible: int | None = None
) -> ExecutionReport:
    tests = f"import unittest\n{head}\nclass A(unittest.TestCase):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    limits = Limits(test_cpu_s=2.0, test_wall_s=3.0, program_wall_s=10.0)
    return sandbox.run(Program(source, tests, "Stack", form="unittest", visible=visible, limits=limits))


def test_methods_and_fixtures_run_as_in_cpython(sandbox: Sandbox) -> None:
    """Check fixtures, subtests, skips, expected failures, clean-ups, helpers and the usual assertions."""
    head = """
LIMIT = 2
def filled(n):
    return Stack(range(n))
"""
    body = """
        @classmethod
        def setUpClass(cls):
            cls.count = getattr(cls, "count", 0) + 1
            cls.shared = Stack([7])
        def setUp(self):
            self.s = filled(LIMIT)
            self.addCleanup(self.s.push, 1)
        def tearDown(self):
            self.assertIsNotNone(self.s)
        def same(self, got, expected, message=None):
            self.assertEqual(got, expected, message)
        def test_a_helper(self):
            self.same(self.s.pop(), 1)
            self.assertEqual(self.count, 1)
            self.assertEqual(self.shared.pop(), 7)
        def test_b_shared(self):
            self.assertEqual((self.count, self.shared.items), (1, []))
        def test_c_subtests(self):
            for x in (1, 5):
                with self.subTest(x=x):
                    self.assertEqual(self.s.push(x).pop(), 1)
        def test_d_raises(self):
            with self.assertRaises(IndexError) as caught:
                Stack().pop()
            self.assertEqual(str(caught.exception), "empty stack")
            with self.assertRaisesRegex(IndexError, "empty"):
                Stack().pop()
            self.assertRaises(IndexError, Stack().pop)
        def test_e_assertions(self):
            self.assertAlmostEqual(self.s.push(0.1 + 0.2).pop(), 0.3)
            self.assertListEqual(self.s.items, [0, 1])
            self.assertCountEqual(self.s.items, [1, 0])
            self.assertIn(1, self.s.items)
            self.assertIsInstance(self.s.items, list)
            self.assertIsNone(self.s.show())
            self.assertTrue(self.s)
            self.assertLessEqual(len(self.s), 2)
            assert len(self.s) == 2
        @unittest.skip("not now")
        def test_f_skip(self):
            self.fail()
        @unittest.skipIf(LIMIT == 2, "two")
        def test_g_skip_if(self):
            self.fail()
        @unittest.expectedFailure
        def test_h_expected_failure(self):
            self.assertEqual(self.s.pop(), 5)
        @unittest.expectedFailure
        def test_i_unexpected_success(self):
            self.assertEqual(self.s.pop(), 1)
        def test_j_skip_inside(self):
            self.skipTest("later")
        def test_k_error(self):
            self.assertEqual(self.s.missing, 1)
        def test_l_no_assertion(self):
            self.s.push(1)
        def test_m_message(self):
            self.same(self.s.items, [0, 2], "own message")
        def test_n_loop_over_nothing(self):
            for x in Stack().items:
                self.assertEqual(x, 1)
    """
    report = run(sandbox, body, head=head)
    assert [test.source for test in report.tests][:2] == ["A.test_a_helper", "A.test_b_shared"]
    assert statuses(report) == [
        *("pass", "pass", "fail", "pass", "pass", "skipped", "skipped", "pass", "fail", "skipped", "error", "pass"),
        *("fail", "error"),
    ], report.tests
    assert report.trusted
    assert "own message" in (report.tests[-2].message or "")
    assert report.tests[-1].message == "no assertion was reached"


@pytest.mark.parametrize(
    "method",
    [
        "class Mine(Stack): pass\nself.assertEqual(Mine().items, [])",
        "self.assertIsInstance(Stack().push(1), Stack)",
        "self.assertEqual(type(Stack()), Stack)",
        "with self.assertRaises(StackError):\n    Stack().fail()",
        "self.assertEqual(Stack([1]).each(lambda x: x + 1), [2])",
        "from unittest.mock import patch\nwith patch.object(Stack, 'pop', return_value=4):\n"
        "    self.assertEqual(Stack().pop(), 4)",
        "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    Stack([1]).show()\n"
        "self.assertEqual(out.getvalue(), '[1]\\n')",
        "import io, sys\nold, sys.stdout = sys.stdout, io.StringIO()\nStack([1]).show()\nout = sys.stdout.getvalue()\n"
        "sys.stdout = old\nself.assertEqual(out, '[1]\\n')",
        "with self.assertRaises(FileNotFoundError):\n    open('missing.txt')\nself.assertEqual(len(Stack()), 0)",
    ],
)
def test_methods_that_need_the_program_in_their_process_run_in_the_guest(sandbox: Sandbox, method: str) -> None:
    body = "def test_it(self):\n" + textwrap.indent(method, "    ")
    body += "\ndef test_other(self):\n    self.assertEqual(Stack([1]).pop(), 1)\n"
    report = run(sandbox, body)
    if report.isolation != "process" or "open(" not in method:
        assert statuses(report) == ["pass", "pass"], report.tests
    assert [test.trusted for test in report.tests] == [False, True]


FORGERIES = {
    "patches TestCase.run": "import unittest\ndef _patch(x=setattr(unittest.TestCase, 'run', lambda *a: None)): pass\n",
    "patches in a default": "def _patch(t=__import__('unittest').TestCase):\n    for n in dir(t):\n"
    "        if n.startswith('assert'): setattr(t, n, lambda *a, **k: None)\n_patch()\n",
    "equal to everything": "",
}
EQUAL = (
    "class Any:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n    __hash__ = None\n"
    "    def __bool__(self): return False\n    def __sub__(self, o): return 0\n    __rsub__ = __sub__\n"
    "    def __contains__(self, x): return True\n    def __round__(self, n=0): return 0\n"
    "    def __lt__(self, o): return True\n    __gt__ = __le__ = __ge__ = __lt__\n"
    "class Stack:\n    def __init__(self, *a): pass\n    def pop(self): return Any()\n    items = property(pop)\n"
    "    def push(self, x): raise __import__('unittest').SkipTest('no')\n"
)


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forgeries_earn_nothing(sandbox: Sandbox, forgery: str) -> None:
    body = """
        def test_equal(self): self.assertEqual(Stack([1]).pop(), 1)
        def test_almost(self): self.assertAlmostEqual(Stack([1]).pop(), 1.0)
        def test_in(self): self.assertIn(1, Stack([1]).items)
        def test_less(self): self.assertLess(Stack([1]).pop(), 3)
        def test_is(self): self.assertIs(Stack([1]).pop(), True)
        def test_list(self): self.assertListEqual(Stack([1]).items, [1])
        def test_count(self): self.assertCountEqual(Stack([1]).items, [1])
        def test_skip(self): self.assertEqual(Stack([1]).push(2).pop(), 2)
        def test_not_equal(self): self.assertNotEqual(Stack([1]).pop(), 2)
    """
    report = run(sandbox, body, FORGERIES[forgery] + EQUAL)
    assert (report.passed, report.trusted_passed) == (0, 0), report.tests
    assert report.trusted


def test_answers_of_the_program_about_its_objects_are_not_trusted(sandbox: Sandbox) -> None:
    body = """
        def setUp(self): self.s = Stack([1])
        def test_equal(self): self.assertEqual(Stack([1]), Stack([1]))
        def test_operator(self): self.assertEqual((self.s + Stack([2])).items, [1, 2])
        def test_contains(self): self.assertIn(1, self.s)
        def test_same(self): self.assertIs(self.s.push(2), self.s)
        def test_plain(self): self.assertEqual(self.s.items, [1])
    """
    report = run(sandbox, body)
    assert statuses(report) == ["pass"] * 5, report.tests
    assert [test.trusted for test in report.tests] == [False, False, False, False, True]


def test_state_shared_by_methods_joins_their_processes_and_their_trust(sandbox: Sandbox) -> None:
    guest = "def test_a(self):\n    seen.append(Stack([1]).each(lambda x: x))\n    self.assertEqual(len(seen), 1)\n"
    judge = "def test_b(self):\n    self.assertEqual((Stack([1]).pop(), seen), (1, [[1]]))\n"
    report = run(sandbox, guest + judge, head="seen = []")
    assert statuses(report) == ["pass", "pass"], report.tests
    assert [test.trusted for test in report.tests] == [False, False]
    asks = guest.replace("Stack([1]).each(lambda x: x)", "Stack([1]) == Stack([1])").replace("== ", "== ")
    report = run(sandbox, asks + judge.replace("[[1]]", "[True]"), head="seen = []")
    assert [(test.status, test.trusted) for test in report.tests] == [("pass", False)] * 2, report.tests


@pytest.mark.parametrize("where", ["module", "class"])
def test_errors_of_fixtures_are_errors_of_every_method(sandbox: Sandbox, where: str) -> None:
    tests = "def test_a(self): self.assertEqual(1, 1)\ndef test_b(self): self.assertEqual(1, 1)\n"
    fixture = "@classmethod\ndef setUpClass(cls): Stack().pop()\n"
    head = "def setUpModule(): Stack().pop()\n" if where == "module" else ""
    report = run(sandbox, tests if head else fixture + tests, head=head)
    assert [(test.status, test.error_type) for test in report.tests] == [("error", "IndexError")] * 2
    refused = "\n    try: Stack().push(2) == 1\n    except TypeError: pass\n"
    head = head and f"def setUpModule():{refused}"
    report = run(sandbox, tests if head else f"@classmethod\ndef setUpClass(cls):{refused}{tests}", head=head)
    assert [(test.status, test.error_type) for test in report.tests] == [("error", "TypeError")] * 2


def test_a_method_that_ends_the_guest_does_not_stop_the_others(sandbox: Sandbox) -> None:
    source = "import os, time\nclass Stack:\n    def die(self): os._exit(0)\n    def sleep(self): time.sleep(60)\n"
    source += "    def one(self): return 1\n"
    body = """
        def tearDown(self): self.assertEqual(Stack().one(), 1)
        def test_a(self): self.assertEqual(Stack().die(), 1)
        def test_b(self): self.assertEqual(Stack().one(), 1)
        def test_c(self):
            try:
                Stack().sleep()
            except BaseException:
                pass
            self.assertTrue(True)
        def test_d(self): self.assertEqual(Stack().one(), 1)
    """
    assert statuses(run(sandbox, body, source)) == ["crash", "pass", "timeout", "pass"]


def test_replay_and_split_of_unittest_classes(sandbox: Sandbox) -> None:
    body = "".join(
        f"def test_{n}(self): self.assertEqual((Stack().made, EXPECTED_{n}), ({n}, 'hidden{n}'))\n" for n in (1, 2, 3)
    )
    head = "".join(f"EXPECTED_{n} = 'hidden{n}'\n" for n in (1, 2, 3))
    for visible in (None, 1, 2):
        assert run(sandbox, body, head=head, visible=visible).passed == 3, visible
    tests = f"import unittest\n{head}class A(unittest.TestCase):\n{textwrap.indent(body, '    ')}"
    visible_source = split_suite(tests, "Stack", "unittest", "", 1)[0].suite.source
    assert "hidden1" in visible_source
    assert "hidden2" not in visible_source
    assert "hidden2" in parse_tests(tests, "Stack", "unittest").source
