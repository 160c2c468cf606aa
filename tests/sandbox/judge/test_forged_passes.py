"""Regression tests: ways in which a program once got "pass" without the answer."""

# ruff: noqa: E501 (lines of the programs)
from __future__ import annotations

import pytest

from marl_ray.sandbox import Sandbox
from tests.sandbox.helpers import run_asserts, statuses

# --- objects of a dead guest ---


@pytest.mark.parametrize(
    "end",
    [
        "import os; os._exit(0)",
        "import os; os.write(3, b'x' * 100)",
        "import os, time; time.sleep(60)",
        "import ctypes; ctypes.string_at(0)",
        "raise SystemExit",
    ],
    ids=["exit", "garbage", "timeout", "segfault", "SystemExit"],
)
@pytest.mark.parametrize(
    "use", ["s.value == 1", "s.get() == 1", "len(s) == 1", "str(s) == 's'", "list(s) == [1]", "f(s) == 1"]
)
def test_objects_of_a_dead_guest_pass_no_test(sandbox: Sandbox, end: str, use: str) -> None:
    source = (
        "class S:\n    value = 1\n    def get(self): return 1\n    def __len__(self): return 1\n"
        "    def __iter__(self): return iter([1])\n    def __str__(self): return 's'\n"
        f"def f(x):\n    if x == 'make': return S()\n    if x == 'die':\n        {end}\n    return 2\n"
    )
    tests = (
        "s = f('make')\nassert s.value == 1",
        "assert f('die') == 1",
        f"assert {use}",
        f"try:\n    assert {use}\nexcept:\n    pass",
    )
    report = run_asserts(sandbox, source, *tests)
    if "SystemExit" in end:  # an ordinary exception: the guest survives
        assert statuses(report)[:2] == ["pass", "error"]
        return
    assert statuses(report)[0] == "pass"
    assert statuses(report)[1] in ("crash", "timeout")
    assert statuses(report)[2:] == ["error", "error"], report


# --- process that runs a test ---


@pytest.mark.parametrize(
    "answer",
    [
        "lambda: 0",
        "open('/dev/null')",
        "(i for i in [])",
        "object()",
        "type('T', (), {})",
        "[[[]]]",
        "deep(58)",
        "deep(59)",
        "deep(60)",
        "deep(61)",
    ],
)
def test_no_answer_of_the_program_moves_a_test_into_the_guest(sandbox: Sandbox, answer: str) -> None:
    source = (
        "def deep(n):\n    x = ()\n    for _ in range(n): x = (x,)\n    return x\n"
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        if 'assert' in str(frame.f_locals.get('source', '')): frame.f_globals['exec'] = lambda *a: None\n"
        f"        frame = frame.f_back\n    return {answer} if x == 1 else True\n"
    )
    tests = ("y = f(1)\nassert f([y]) == 'never'", "assert f(f(1)) == 'never'", "assert f(2) == 'never'")
    report = run_asserts(sandbox, source, *tests)
    assert report.passed == 0
    assert report.trusted


def test_one_test_in_the_guest_leaves_the_others_trusted(sandbox: Sandbox) -> None:
    source = "def f(g, x=2): return g(x) if callable(g) else g\n"
    tests = (
        "def double(x): return 2 * x\nassert f(double) == 4",
        "assert f(7) == 7",
        "assert f(lambda x: x + 1) == 3",
        "assert f(abs, -3) == 3",
        "assert f(double(4)) == 8",
    )
    report = run_asserts(sandbox, source, *tests)
    assert statuses(report) == ["pass"] * 5
    assert [test.trusted for test in report.tests] == [False, True, False, True, True]
    assert not report.trusted
    assert report.trusted_passed == 3


def test_forgeries_in_the_guest_do_not_reach_tests_in_the_judge(sandbox: Sandbox) -> None:
    source = (
        "import builtins, sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        frame.f_globals['exec'] = lambda *a: None\n        frame = frame.f_back\n    return 'forged'\n"
    )
    report = run_asserts(
        sandbox, source, "assert f(lambda: 1) == 1", "assert f(1) == 1", "assert f(lambda: 2) == 2", "assert f(2) == 2"
    )
    assert [(t.status, t.trusted) for t in report.tests if t.trusted] == [("fail", True)] * 2
    assert [test.trusted for test in report.tests] == [False, True, False, True]


def test_tests_that_share_a_value_of_the_guest_all_run_in_the_guest(sandbox: Sandbox) -> None:
    source = "def f(g): return [g(1)] if callable(g) else g\n"
    report = run_asserts(sandbox, source, "x = f(lambda n: n)\nassert x == [1]", "assert f(x) == [1]")
    assert statuses(report) == ["pass", "pass"]
    assert [test.trusted for test in report.tests] == [False, False]


# --- names, and requests on proxies ---


@pytest.mark.parametrize(
    ("lie", "test"),
    [
        (
            "class math:\n    inf = nan = 0\n    isclose = staticmethod(lambda *a, **k: True)",
            "assert math.isclose(f(1), 5.0)",
        ),
        ("def isclose(*a, **k): return True", "assert isclose(f(1), 5.0)"),
        ("class sys:\n    maxsize = 0", "assert f(1) == sys.maxsize"),
        ("class collections:\n    Counter = staticmethod(lambda *a: 0)", "assert f(1) == collections.Counter('a')"),
        ("def Counter(*a): return 0", "assert f(1) == Counter('a')"),
        (
            "class itertools:\n    chain = staticmethod(lambda *a: [])",
            "assert [f(1)] == list(itertools.chain([1], [2]))[1:]",
        ),
    ],
)
def test_program_cannot_redefine_standard_library_names_of_tests(sandbox: Sandbox, lie: str, test: str) -> None:
    assert run_asserts(sandbox, f"{lie}\ndef f(x): return 0\n", test).passed == 0


def test_tests_can_use_modules_without_import(sandbox: Sandbox) -> None:
    tests = ("assert math.isclose(f(1), 1.0)", "assert f(sys.maxsize) == sys.maxsize", "assert isclose(f(2), 2)")
    assert run_asserts(sandbox, "import math, sys\nfrom math import *\ndef f(x): return x\n", *tests).passed == 3
    assert (
        run_asserts(
            sandbox,
            "class math:\n    def __init__(self, x): self.pi = x\n",
            "assert math(3).pi == 3",
            entry_point="math",
        ).passed
        == 1
    )


@pytest.mark.parametrize(
    ("method", "test"),
    [
        ("__float__", "assert float(x) < 0.5 and float(x) > 0.5 or float(x) != float(x)"),
        ("__int__", "assert int(x) == 1 and int(x) == 2"),
        ("__index__", "assert [0, 5, 6][x] == 5 and [0, 5, 6][x] == 6"),
        ("__len__", "assert len(x) == 1 and len(x) == 2"),
        ("__bool__", "assert x and not x"),
        ("__str__", "assert str(x) == '1' and str(x) == '2'"),
        ("__repr__", "assert repr(x) == '1' and repr(x) == '2'"),
        ("__hash__", "assert hash(x) == 1 and hash(x) == 2"),
    ],
)
def test_requests_on_a_proxy_are_sent_once_per_state(sandbox: Sandbox, method: str, test: str) -> None:
    kind = {"__float__": "float", "__str__": "str", "__repr__": "str", "__bool__": "(2).__eq__"}.get(method, "int")
    source = f"class T:\n    n = 0\n    def {method}(self):\n        T.n += 1\n        return {kind}(T.n)\ndef f(): return T()\n"
    assert run_asserts(sandbox, source, f"x = f()\n{test}").passed == 0


def test_answers_may_change_after_a_call(sandbox: Sandbox) -> None:
    source = "class T:\n    n = 0\n    def add(self): self.n += 1\n    def __len__(self): return self.n\ndef f(): return T()\n"
    assert (
        run_asserts(
            sandbox, source, "x = f()\nassert len(x) == 0\nx.add()\nassert len(x) == 1\nx.n = 7\nassert len(x) == 7"
        ).passed
        == 1
    )


# --- identity, types, and refusals ---


@pytest.mark.parametrize(
    "test",
    [
        "a = [1]\nassert f(a) is not a",
        "a = {}\nassert [f(a) is not a][0]",
        "a = (1, 2)\nassert f(a) is not a",
        "a = 'some text'\nassert not (f(a) is a)",
        "assert callable(f(f.T()))",
        "assert callable(f.T())",
        "assert type(f.S('a')) is str",
        "assert type(f.S('a')) == str",
        "assert isinstance(f.T(), str)",
        "assert hasattr(f.T(), '__len__')",
        "try:\n    r = f.E() == 5\nexcept:\n    r = True\nassert r",
        "try:\n    r = f(object())\nexcept:\n    r = 1\nassert r == 1",
        "assert f.E() in [1, 2]",
        "assert not f.E() != 5",
        "assert [f.E()] == [5]",
        "x = f.E()\nassert list(map(hash, [x])) == [x]",
    ],
)
def test_properties_of_proxies_pass_no_test(sandbox: Sandbox, test: str) -> None:
    source = (
        "class T: pass\nclass S(str): pass\nclass E:\n    def __eq__(self, other): return True\n    __lt__ = __ne__ = __eq__\n"
        "    def __hash__(self): return hash(5)\ndef f(x): return x\nf.T, f.S, f.E = T, S, E\n"
    )
    assert run_asserts(sandbox, source, test).passed == 0


@pytest.mark.parametrize(
    "test",
    [
        "a = [1]\nassert f(a) is a",
        "a = [1]\nassert f([a])[0] is a",
        "assert not callable(f.T())",
        "assert callable(f.T)",
        "assert isinstance(f.S('a'), str) and f.S('a') == 'a' and type(f.S('a')).__name__ == 'S'",
        "assert f(None) is None and f(True) is True",
        "x = f.T()\nassert f(x) is x",
        "assert f.T() is not f.T()",
        "assert isinstance(f(iter('ab')), object)",
    ],
)
def test_identity_and_types_are_as_in_one_process(sandbox: Sandbox, test: str) -> None:
    source = "class T: pass\nclass S(str): pass\ndef f(x): return x\nf.T, f.S = T, S\n"
    assert run_asserts(sandbox, source, test).passed == 1


def test_program_compares_its_objects_only_with_each_other(sandbox: Sandbox) -> None:
    source = "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\ndef f(x): return P(x)\n"
    tests = ("assert f(1) == P(1)", "assert f(1) == P(2)", "assert [f(1)] == [P(1)]", "a = [1]\nassert f(1) == a")
    tests += ("assert max(f(1), f(2), key=hash)", "assert (lambda a, b: a == b)(f(1), f(1))")
    report = run_asserts(sandbox, source, *tests)
    assert statuses(report) == ["pass", "fail", "pass", "error", "error", "error"]
    assert [test.trusted for test in report.tests] == [False, False, False, True, True, True]


def test_operators_on_instances_made_by_the_test_ask_the_program(sandbox: Sandbox) -> None:
    source = (
        "class Vec:\n    def __init__(self, x): self.x = x\n    def __mul__(self, n): return Vec(self.x * n)\n"
        "    __rmul__ = __mul__\n    def __contains__(self, x): return x == self.x\n    def __sub__(self, x): return 0\n"
        "def f(x): return Vec(x)\n"
    )
    tests = (
        "assert (Vec(2) * 3).x == 6",
        "assert (3 * Vec(2)).x == 6",
        "v = Vec(2)\nv *= 2\nassert 4 in v and 5 not in v",
    )
    made = run_asserts(sandbox, source, *tests)
    assert [(test.status, test.trusted) for test in made.tests] == [("pass", False)] * 3
    given = run_asserts(
        sandbox, source, "assert (f(2) * 3).x == 6", "assert abs(f(2) - 3.5) < 1e-9", "assert 2 in f(2)"
    )
    assert statuses(given) == ["error"] * 3


@pytest.mark.parametrize(
    "tests",
    [
        ("ok = f(1) == f(2)\nassert g() == 1", "assert ok"),
        ("ok = f(1) == f(2)\nassert g() == 1", "both = [ok]\nassert g() == 1", "assert both[0]"),
        (
            "seen = []\nagain = seen\nassert g() == 1",
            "seen.append(f(1) == f(2))\nassert g() == 1",
            "assert again == [True]",
        ),
        ("box = {}\nassert g() == 1", "box['ok'] = f(1) == f(2)\nassert g() == 1", "assert box['ok']"),
        ("def told(): return ok\nok = f(1) == f(2)\nassert g() == 1", "assert told()"),
        ("def tell():\n    global ok\n    ok = f(1) == f(2)\ntell()\nassert g() == 1", "assert ok"),
        (
            "ok = g()\nassert ok",
            "def tell():\n    global ok\n    ok = f(1) == f(2)\ntell()\nassert g() == 1",
            "assert ok",
        ),
        ("ok = 0\nassert not ok", "def tell():\n    global ok\n    ok = f(1) == f(2)\ntell()\nassert g()", "assert ok"),
        ("ok = f(1) == f(2)\nassert g() == 1", "y = [ok for ok in [0]]\nassert ok"),
        ("def keep(x, xs=[]):\n    xs.append(x)\n    return xs\nassert keep(f(1) == f(2))", "assert keep(3)[0]"),
        ("import math\nmath.ok = f(1) == f(2)\nassert g() == 1", "assert math.ok"),
        ("p = P(1)\nd = abs(p - 5.0)\nassert g() == 1", "assert d < 1e-6"),
        ("ok = f(1) == f(2)\nassert g() == 2", "assert ok"),
        ("ok = f(1) == f(2)\ng('end')\nassert g() == 1", "assert ok"),
        ("for x in [1]:\n    ok = f(x) == f(2)\nassert g() == 1", "if ok:\n    y = 1\nassert y == 1"),
    ],
)
def test_tests_that_read_variables_of_an_untrusted_test_are_not_trusted(
    sandbox: Sandbox, tests: tuple[str, ...]
) -> None:
    source = (
        "class P:\n    def __init__(self, x): pass\n    def __eq__(self, o): return True\n"
        "    def __sub__(self, o): return 0.0\ndef f(x): return P(x)\n"
        "def g(x=None):\n    if x == 'end':\n        import os\n        os._exit(0)\n    return 1\n"
    )
    # A test's own variables of the same name, constants and functions stay trusted.
    own = (
        "import json\none = 1\ndef add(x): return x + one\nok = g()\nassert add(ok) == 2",
        "ok = [x for x in [g()]]\nassert ok == [one]",
    )
    report = run_asserts(sandbox, source, own[0], *tests, own[1], "assert add(g()) == 2 and json")
    assert statuses(report)[-3:] == ["pass"] * 3, report.tests
    assert [test.trusted for test in report.tests][-3:] == [False, True, True], report.tests
    assert report.tests[0].trusted


SELF = (
    "seen = []\nclass S:\n    def __init__(self, *a): self.seen = seen\n    def pow(self, *a): return self\n"
    "    __round__ = pow\n    def __sub__(self, o):\n        seen.append(o)\n        return 0.0\n"
    "    __rsub__ = __mod__ = __isub__ = __sub__\n    def __contains__(self, x): return bool(self.__sub__(x)) or True\n"
    "    def __add__(self, o): return self\n    __radd__ = __add__\ndef f(x): return x\n"
    "class K(int):\n    def __sub__(self, o): return 0.0\n"
)


@pytest.mark.parametrize(
    "test",
    [
        "s = S()\nassert abs(s.pow(2) - 1024.0) < 1e-5",
        "s = S()\nassert abs(1024.0 - s.pow(2)) < 1e-5",
        "assert 1024.0 in S().pow(2)",
        "assert not (1024.0 not in S().pow(2))",
        "s = S()\nassert s.pow(2) % 1024.0 == 0",
        "s = S()\nr = s.pow(2)\nassert abs(r - 1024.0) < 1e-5",
        "s = S()\ns = s.pow(2)\nassert abs(s - 1024.0) < 1e-5",
        "s = S()\nr = s.pow(2)\nr -= 1024.0\nassert r == 0",
        "s = S()\nassert abs(round(s, 2) - 1024.0) < 1e-5",
        "assert abs(f(S()) - 1024.0) < 1e-5",
        "s = S()\ndef g(s): return abs(s - 1024.0)\nassert g(f(s)) < 1e-5",
        "s = S()\nfor s in [s.pow(2)]:\n    assert abs(s - 1024.0) < 1e-5",
        "s, t = S().pow(2), S()\nassert abs(s - 1024.0) < 1e-5",
        "s = S()\nwith s.pow(2) as s:\n    assert abs(s - 1024.0) < 1e-5",
        "assert (lambda s: s - 1024.0)(f(S())) == 0",
        "assert [s - 1024.0 for s in [S().pow(2)]] == [0]",
        "k = K(3)\nassert abs(f(k) - 1024.0) < 1e-5",
    ],
)
def test_results_of_functions_are_not_instances_made_by_the_test(sandbox: Sandbox, test: str) -> None:
    """Return an instance from a method: the program must not be asked about its operators."""
    report = run_asserts(sandbox, SELF, test, "assert S().seen == [1024.0]", entry_point="S")
    assert [test.status == "pass" for test in report.tests] == [False, False], report.tests
    assert report.trusted, "the program was not asked"


@pytest.mark.parametrize(
    "test",
    [
        "s = t = S()\nassert s - 1 == 0",
        "s, t = S(), S()\nassert 1 - t == 0",
        "x = 5\nx -= S()\nassert x == 0",
        "assert [s % 2 for s in (S(), S())] == [0, 0]",
        "s = S() + 1\ns = s + S()\nassert s - 3 == 0",
        "T = S\nassert T() - 3 == 0",
        "assert sum([S(), S()]).seen == []",
        "assert sum((S(n) for n in range(3)), 5).seen == []",
        "def g():\n    s = S()\n    s -= 1\n    return s\nassert g() == 0",
        "assert 3 in S() and not 3 not in S()",
    ],
)
def test_expressions_that_are_instances_made_by_the_test(sandbox: Sandbox, test: str) -> None:
    report = run_asserts(sandbox, SELF, test, entry_point="S")
    assert [(test.status, test.trusted) for test in report.tests] == [("pass", False)], report.tests


def test_tests_and_programs_draw_different_random_numbers(sandbox: Sandbox) -> None:
    """Let the program draw the numbers that the test would draw next from a shared seed."""
    source = "import random\ndef f():\n    return [random.random() for _ in range(5)]\n"
    test = "import random\nx = [random.random() for _ in range(5)]\nassert f() == x"
    assert run_asserts(sandbox, source, test).passed == 0
    again = "import random\nassert f(random.random()) == 0"
    messages = {run_asserts(sandbox, "def f(x): return x\n", again).tests[0].message for _ in range(2)}
    assert len(messages) == 1, "random numbers depend on the tests alone"
