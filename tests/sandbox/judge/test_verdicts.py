"""Reports: statuses, messages, lines, output, limits and trust."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl_ray.sandbox import ExecutionReport, Limits, Program, Sandbox, count_tests
from tests.sandbox.helpers import statuses

SHORT = Limits(test_cpu_s=0.3, test_wall_s=0.8, program_wall_s=3.0, max_timeouts=2, max_crashes=1)


def test_every_assert_gets_its_own_verdict(sandbox: Sandbox) -> None:
    source = "def f(x):\n    if x == 3:\n        raise KeyError('three')\n    return x + 1\n"
    tests = "def check(candidate):\n" + "".join(
        f"    assert candidate({x}) == {want}\n" for x, want in [(1, 2), (2, 9), (3, 4), (4, 5)]
    )
    report = sandbox.run(Program(source, tests, "f"))
    assert statuses(report) == ["pass", "fail", "error", "pass"]
    assert (report.passed, report.total, report.trusted) == (2, 4, True)
    failed, error = report.tests[1], report.tests[2]
    assert failed.error_type == "AssertionError"
    assert "3" in (failed.message or "")
    assert "9" in (failed.message or "")
    assert (error.error_type, error.line) == ("KeyError", 3)
    assert "three" in (error.message or "")
    assert [("candidate" in test.source or "f(" in test.source) for test in report.tests] == [True] * 4
    assert report.isolation == sandbox.level


def test_an_entry_point_may_have_the_name_of_a_builtin(sandbox: Sandbox) -> None:
    report = sandbox.run(Program("def sum(a, b):\n    return a + b\n", "assert sum(2, 3) == 5", "sum"))
    assert statuses(report) == ["pass"]


def test_long_values_are_truncated_in_messages(sandbox: Sandbox) -> None:
    report = sandbox.run(Program("def f(): return 'y' * 100000", ("assert f() == 'n' * 100000",), "f"))
    assert statuses(report) == ["fail"]
    assert 0 < len(report.tests[0].message or "") < 2000


def test_failed_assertion_of_the_program_is_an_error_with_its_line(sandbox: Sandbox) -> None:
    report = sandbox.run(Program("def f(x):\n    assert x > 5\n    return x", ("assert f(1) == 1",), "f"))
    assert report.passed == 0
    assert report.tests[0].error_type == "AssertionError"
    assert report.tests[0].line == 2


@pytest.mark.parametrize(
    ("source", "line"),
    [("def f(x):\n    return (x +\n", 2), ("def f(x):\nreturn x\n", 2), ("x = 1\ny = = 2\n", 2), ("f = 'abc\n", 1)],
)
def test_syntax_errors_have_line_and_column(sandbox: Sandbox, source: str, line: int) -> None:
    report = sandbox.run(Program(source, ("assert f(1) == 1", "assert f(2) == 2"), "f"))
    assert report.syntax_error is not None
    assert report.syntax_error.message
    assert report.syntax_error.line == line
    assert (report.syntax_error.column or 0) >= 1
    assert (report.passed, report.total) == (0, 2)
    in_guest = sandbox.run(Program(source + "\n# " + "x" * 70_000, ("assert f(1) == 1", "assert f(2) == 2"), "f"))
    assert (in_guest.syntax_error, in_guest.tests) == (report.syntax_error, report.tests)


def test_programs_that_do_not_compile_keep_their_place_in_a_batch(sandbox: Sandbox) -> None:
    test = ("assert f(1) == 1",)
    good, bad = "def f(x): return x\n", "def f(x): return\n)"
    sources = [bad, good, bad, bad, f"{good}#", bad, f"{good}##", bad, bad]
    reports = sandbox.run_batch([Program(source, test, "f") for source in sources])
    assert [r.syntax_error is not None for r in reports] == [source == bad for source in sources]
    assert [r.passed for r in reports] == [source != bad for source in sources]


def test_failed_import_and_missing_entry_point_are_errors(sandbox: Sandbox) -> None:
    broken = sandbox.run(Program("import nowhere_to_be_found\n", ("assert f(1) == 1",), "f"))
    assert statuses(broken) == ["error"]
    assert broken.tests[0].error_type == "ModuleNotFoundError"
    assert broken.syntax_error is None
    missing = sandbox.run(Program("def g(x): return x\n", ("assert f(1) == 1",), "f"))
    assert statuses(missing) == ["error"]
    assert "f" in (missing.tests[0].message or "")


def test_tests_after_the_last_permitted_timeout_are_skipped(sandbox: Sandbox) -> None:
    source = "import time\ndef f(x):\n    if x == 'sleep': time.sleep(60)\n    while x == 'spin': pass\n    return x\n"
    tests = tuple(f"assert f({x!r}) == {x!r}" for x in ("a", "sleep", "b", "spin", "c"))
    report = sandbox.run(Program(source, tests, "f", limits=replace(SHORT, test_wall_s=4.0, program_wall_s=30.0)))
    assert statuses(report) == ["pass", "timeout", "pass", "timeout", "skipped"]
    assert report.wall_s >= 4.0


def test_the_cpu_limit_of_a_test_ends_an_endless_loop(sandbox: Sandbox) -> None:
    limits = Limits(test_cpu_s=0.3, test_wall_s=60.0, program_wall_s=60.0, max_timeouts=2)
    report = sandbox.run(Program("def f(x):\n    while True: pass\n", ("assert f(1) == 1",), "f", limits=limits))
    assert statuses(report) == ["timeout"]
    assert report.cpu_s >= 0.3
    assert report.wall_s < 60.0


def test_tests_after_the_last_permitted_crash_are_skipped(sandbox: Sandbox) -> None:
    source = "import os\ndef f(x):\n    if x == 2: os._exit(0)\n    return x\n"
    report = sandbox.run(Program(source, tuple(f"assert f({x}) == {x}" for x in (1, 2, 3)), "f", limits=SHORT))
    assert statuses(report) == ["pass", "crash", "skipped"]


def test_tests_after_the_program_wall_limit_are_skipped(sandbox: Sandbox) -> None:
    limits = Limits(test_cpu_s=60.0, test_wall_s=60.0, program_wall_s=3.0)
    source = "import time\ndef f(x):\n    time.sleep(60 * x)\n    return x\n"
    report = sandbox.run(Program(source, tuple(f"assert f({x}) == {x}" for x in range(3)), "f", limits=limits))
    assert statuses(report) == ["pass", "timeout", "skipped"]
    assert report.wall_s < 30.0


def test_memory_limit_raises_memory_error(sandbox: Sandbox) -> None:
    source = "def f(n):\n    return len(bytearray(n << 20))\n"
    tests = ("assert f(16) == 16 << 20", "assert f(400) == 400 << 20")
    report = sandbox.run(Program(source, tests, "f", limits=Limits(memory_mb=128)))
    assert statuses(report) == ["pass", "error"]
    assert report.tests[1].error_type == "MemoryError"


def test_output_is_captured_up_to_its_limit(sandbox: Sandbox) -> None:
    limits = Limits(max_output_bytes=1000)
    source = (
        "import sys\nprint('at import')\ndef f(x):\n    print('called', x)\n"
        "    print('to stderr', file=sys.stderr)\n    print('z' * x)\n    return x\n"
    )
    few = sandbox.run(Program(source, ("assert f(3) == 3",), "f", limits=limits))
    assert few.passed == 1
    assert "at import" in few.stdout
    assert "called 3" in few.stdout
    assert "to stderr" in few.stdout
    many = sandbox.run(Program(source, ("assert f(5000) == 5000",), "f", limits=limits))
    assert many.passed == 1, "too much output is not the program's fault"
    assert len(many.stdout) <= 1000


def test_result_above_the_reply_limit_is_an_error(sandbox: Sandbox) -> None:
    program = Program("def f(n): return 'x' * n", ("assert len(f(10)) == 10", "assert len(f(5000)) == 5000"), "f")
    report = sandbox.run(Program(program.source, program.tests, "f", limits=Limits(max_reply_bytes=4096)))
    assert statuses(report) == ["pass", "error"]


def test_cpu_time_is_measured(sandbox: Sandbox) -> None:
    source = (
        "import time\ndef f(s):\n    end = time.process_time() + s\n"
        "    while time.process_time() < end: pass\n    return s\n"
    )
    report = sandbox.run(Program(source, ("assert f(0.2) == 0.2",), "f"))
    assert report.passed == 1
    assert 0.2 <= report.cpu_s < 1.0
    assert report.wall_s >= 0.2


def test_arguments_are_changed_in_place(sandbox: Sandbox) -> None:
    source = "def f(a, d, s):\n    a.sort(); d['k'] = a; s.add(9)\n"
    tests = ("a, d, s = [3, 1], {}, {1}\nf(a, d, s)\nassert (a, d, s) == ([1, 3], {'k': [1, 3]}, {1, 9})",)
    assert sandbox.run(Program(source, tests, "f")).passed == 1


def test_tests_can_use_objects_of_the_program(sandbox: Sandbox) -> None:
    source = (
        "class Stack:\n    limit = 3\n    def __init__(self, *items): self.items = list(items)\n"
        "    def push(self, x): self.items.append(x); return self\n    def pop(self): return self.items.pop()\n"
        "    def __len__(self): return len(self.items)\n    def __iter__(self): return iter(self.items)\n"
        "def counter(n):\n    for i in range(n): yield i\n"
    )
    tests = (
        "s = Stack(1)\ns.push(2).push(3)\nassert s.pop() == 3\nassert len(s) == 2",
        "assert list(Stack(4, 5)) == [4, 5]",
        "assert Stack().limit == 3",
        "assert list(counter(3)) == [0, 1, 2]",
        "assert Stack(1) == Stack(1)",
    )
    report = sandbox.run(Program(source, tests, "Stack"))
    assert statuses(report) == ["pass"] * 4 + ["fail"]
    assert [test.trusted for test in report.tests] == [True] * 4 + [False], (
        "the program decides the equality of its objects"
    )


def test_helpers_of_the_prompt_run_in_the_judge(sandbox: Sandbox) -> None:
    prompt = "def double(x):\n    return 2 * x\n\ndef f(x):\n    '''Half of x.'''\n"
    lies = "def double(x): return 10\ndef f(x): return 0\n"
    honest = "def double(x): return 2 * x\ndef f(x): return x // 2\n"
    tests = ("assert double(f(10)) == 10",)
    assert sandbox.run(Program(honest, tests, "f", prompt=prompt)).passed == 1
    assert sandbox.run(Program(lies, tests, "f", prompt=prompt)).passed == 0


def test_stdio_form_compares_output(sandbox: Sandbox) -> None:
    source = "n = int(input())\nprint(sum(int(input()) for _ in range(n)))\n"
    tests = ('{"stdin": "2\\n3\\n4\\n", "stdout": "7\\n"}', '{"stdin": "1\\n5\\n", "stdout": "6"}')
    report = sandbox.run(Program(source, tests, "", form="stdio"))
    assert statuses(report) == ["pass", "fail"]
    assert report.trusted is True


def test_program_reads_its_stdin(sandbox: Sandbox) -> None:
    program = Program(
        "import sys\ntext = sys.stdin.read()\ndef f(): return text\n", ("assert f() == 'typed'",), "f", stdin="typed"
    )
    assert sandbox.run(program).passed == 1


def test_unittest_verdicts_are_trusted(sandbox: Sandbox) -> None:
    tests = (
        "import unittest\nclass A(unittest.TestCase):\n    def setUp(self): self.c = C()\n"
        "    def test_one(self): self.assertEqual(self.c.one(), 1)\n"
        "    def test_two(self): self.assertEqual(self.c.one(), 2)\n"
        "    def test_three(self): self.c.three()\n    @unittest.skip('no')\n    def test_four(self): pass\n"
    )
    report = sandbox.run(Program("class C:\n    def one(self): return 1\n", tests, "C", form="unittest"))
    assert statuses(report) == ["pass", "fail", "error", "skipped"]
    assert report.trusted is True


def test_tests_that_pass_functions_to_the_program_are_not_trusted(sandbox: Sandbox) -> None:
    report = sandbox.run(Program("def f(g): return g(2)\n", ("assert f(lambda x: x + 1) == 3",), "f"))
    assert statuses(report) == ["pass"]
    assert report.trusted is False


def test_reports_of_a_batch_are_in_order(sandbox: Sandbox) -> None:
    programs = [Program(f"def f(): return {n}", (f"assert f() == {n % 7}",), "f") for n in range(30)]
    reports = sandbox.run_batch(programs)
    assert [report.passed for report in reports] == [int(n == n % 7) for n in range(30)]


def test_counting_tests_needs_no_sandbox() -> None:
    assert count_tests(("assert f(1) == 1", "assert f(2) == 2"), "f") == 2
    assert count_tests("def check(c):\n    x = 1\n    assert c(x)\n    assert True\n", "f") == 1
    with pytest.raises(ValueError, match="test"):
        count_tests("def check(c):\n    pass\n", "f")


def test_reports_round_trip_through_json(sandbox: Sandbox) -> None:
    report = sandbox.run(
        Program("def f(x):\n    print('é')\n    return x", ("assert f(1) == 2", "assert f(1) == 1"), "f")
    )
    assert ExecutionReport.from_dict(report.to_dict()) == report
    assert set(report.to_dict()) >= {
        "isolation",
        "trusted",
        "syntax_error",
        "tests",
        "passed",
        "total",
        "stdout",
        "cpu_s",
        "wall_s",
    }


def test_documented_limits_of_the_sandbox(sandbox: Sandbox) -> None:
    """Check the limits that docs/explanation/sandbox.md documents; if one of them is gone, change the documentation."""
    hard_coded = "def f(x): return {1: 'one', 2: 'two'}[x]\n"
    report = sandbox.run(Program(hard_coded, ("assert f(1) == 'one'", "assert f(2) == 'two'"), "f"))
    assert (report.passed, report.trusted) == (2, True)
    # A test that calls a method of the program's object accepts any answer of the program.
    agreeing = "class T:\n    def __getattr__(self, name): return lambda *a: True\ndef f(): return T()\n"
    report = sandbox.run(Program(agreeing, ("assert f().startswith('secret')", "assert f() == 'secret'"), "f"))
    assert statuses(report) == ["pass", "fail"]


def test_invalid_tests_and_prompts_do_not_stop_the_sandbox(sandbox: Sandbox) -> None:
    prompt = "def helper():\n    nonlocal x\n    return 1\n\ndef f(x):\n    pass\n"
    report = sandbox.run(Program("def f(x): return x\n", ("assert f(1) == 1",), "f", prompt=prompt))
    assert report.passed == 1
    for tests in ("def check(candidate):\n    pass\n", ("assert f(1) ==",), "", ("x = 1",), ("assert True",)):
        with pytest.raises(ValueError, match=r"\w"):
            sandbox.run(Program("def f(x): return x\n", tests, "f"))
    with pytest.raises(ValueError, match="entry point"):
        sandbox.run(Program("def f(x): return x\n", ("assert f(1) == 1",), "not a name"))
    assert sandbox.run(Program("def f(x): return x\n", ("assert f(1) == 1",), "f")).passed == 1


def test_tests_can_compare_constants_of_the_program(sandbox: Sandbox) -> None:
    report = sandbox.run(Program("LIMIT = 3\ndef f(): return LIMIT\n", ("assert LIMIT == 3", "assert LIMIT == 4"), "f"))
    assert statuses(report) == ["pass", "fail"]


def test_unittest_messages_keep_several_lines(sandbox: Sandbox) -> None:
    tests = (
        "import unittest\nclass A(unittest.TestCase):\n    maxDiff = None\n"
        "    def test_dict(self): self.assertEqual(f(), {'a': 'x' * 80})\n"
    )
    report = sandbox.run(Program("def f(): return {'a': 'y' * 80}\n", tests, "f", form="unittest"))
    assert [(test.status, test.error_type) for test in report.tests] == [("fail", "AssertionError")]
    assert "yyyy" in (report.tests[0].message or "")


@pytest.mark.parametrize(
    "more",
    [
        f"g = {'lambda: ' * 1200}1\n",
        "def g():\n" + "".join(f"{' ' * d}try: pass\n{' ' * d}finally:\n" for d in range(1, 19)) + " " * 19 + "pass\n",
        f"# {'x' * 70_000}\n",
    ],
    ids=["deep", "finally", "long"],
)
def test_programs_that_are_expensive_to_compile_are_compiled_by_their_guest(sandbox: Sandbox, more: str) -> None:
    restarts = sandbox.restarts
    report = sandbox.run(Program(f"def f(x): return x\n{more}", ("assert f(1) == 1",), "f"))
    assert sandbox.restarts == restarts, "the judge did not survive it"
    assert statuses(report) == (["error"] if "finally" in more else ["pass"])


def test_messages_do_not_call_methods_of_the_program(sandbox: Sandbox) -> None:
    source = (
        "class T:\n    def __str__(self): raise KeyError('no')\n    __repr__ = __str__\n"
        "class L(list):\n    def __repr__(self): raise KeyError('no')\ndef f(x): return T() if x else L([1, 2])\n"
    )
    tests = ("assert 1 == 2, f(1)", "raise_it = f(1)\nassert f(0) == [3]", "x = f(1)\nraise ValueError(x)\nassert x")
    restarts = sandbox.restarts
    report = sandbox.run(Program(source, tests, "f"))
    assert statuses(report) == ["fail", "fail", "error"]
    assert report.tests[1].message == "got [1, 2], expected [3]"
    assert report.tests[2].error_type == "ValueError"
    assert sandbox.restarts == restarts, "the judge did not survive it"


def test_changes_of_one_problems_tests_do_not_reach_the_next_problem(sandbox: Sandbox) -> None:
    """Change interpreter state, including the judge's own timer, and look for it in the next problem's tests."""
    changes = (
        "import decimal\ndecimal.getcontext().prec = 3",
        "import sys\nsys.setrecursionlimit(500)\nsys.set_int_max_str_digits(700)\nsys.path.append('x')",
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 0)",
        "import warnings, random, math\nwarnings.simplefilter('error')\nrandom.seed(1)\nmath.pi = 3\nmath.new = 1",
        "import builtins, os\nbuiltins.extra = 1\nos.environ['X'] = '1'\nimport collections\ncollections.Counter = 0",
    )
    tests = tuple(f"{change}\nassert f(1) == 1" for change in changes)
    assert sandbox.run(Program("def f(x): return x\n", tests, "f")).passed == 5
    checks = (
        "import decimal\nassert f(1) == 1 and decimal.getcontext().prec == 28",
        "import sys\nassert f(1) == 1 and sys.getrecursionlimit() > 1000 and len(str(10**900)) == 901\n"
        "assert 'x' not in sys.path",
        "import math, os\nassert f(1) == 1 and math.pi > 3.1 and not hasattr(math, 'new') and 'X' not in os.environ",
        "import warnings, builtins\nwarnings.warn('seen')\nassert not hasattr(builtins, 'extra') and f(1) == 1",
        "import collections\nassert f(1) == 1 and collections.Counter('a')",
    )
    report = sandbox.run(Program("def f(x): return x\n", checks, "f"))
    assert statuses(report) == ["pass"] * 5, report
    endless = Program("def f(x):\n    while True: pass\n", ("assert f(1) == 1",), "f", limits=SHORT)
    restarts = sandbox.restarts
    assert statuses(sandbox.run(endless)) == ["timeout"]
    assert sandbox.restarts == restarts
