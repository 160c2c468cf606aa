"""Effects of one program on the judge do not reach the next program or test."""

# ruff: noqa: E501 (lines of the programs)
from __future__ import annotations

from marl_ray.sandbox import Limits, Program, Sandbox
from tests.sandbox.helpers import run_asserts, statuses

RAW = """
import os, struct, sys, time
def answer(text):
    frame = sys._getframe()
    while "nonce" not in frame.f_locals: frame = frame.f_back
    data = ('["' + frame.f_locals["nonce"] + '",' + text + "]").encode()
    data = struct.pack("<I", len(data)) + data
    while data: data = data[os.write(3, data):]
    time.sleep(60)
"""


def test_answer_too_large_for_memory_is_a_crash_of_its_guest(sandbox: Sandbox) -> None:
    source = RAW + "def f(x): answer('\"ok\",[' + '[],' * x + '0],null')\n"
    test = "try:\n    f(18_000_000)\nexcept MemoryError:\n    pass\nassert True is not None"
    limits = Limits(test_cpu_s=10.0, test_wall_s=20.0, program_wall_s=30.0, max_reply_bytes=60 << 20)
    report = sandbox.run(Program(source, (test,), "f", limits=limits))
    assert (statuses(report), report.tests[0].message) == (["crash"], "answer is not JSON (MemoryError)")
    assert run_asserts(sandbox, "def f(x): return x\n", "assert f(1) == 1").passed == 1


def test_request_that_exhausts_the_stack_registers_no_objects(sandbox: Sandbox) -> None:
    """Exhaust the stack between changes and arguments: both sides must continue from the same object number."""
    test = (
        "def g(n, xs):\n    return f(xs) if n == 0 else g(n - 1, xs)\n"
        "import sys\nlimit = sys.getrecursionlimit()\nxs = [1]\nf(xs)\ndone = []\n"
        "for depth in range(limit - 60, limit):\n    xs.append([depth])\n    deep = [[[[[[[[depth]]]]]]]]\n"
        "    for value in (deep, xs):\n        try:\n            done.append(g(depth, value) is value)\n"
        "        except RecursionError:\n            pass\n"
        "assert 0 < len(done) < 120 and all(done)\ny = [xs, [1]]\nassert f(y) is y"
    )
    report = run_asserts(sandbox, "def f(x): return x\n", test, "assert f(xs) is xs")
    assert statuses(report) == ["pass", "pass"], report


def test_classes_with_the_same_truncated_name_count_once(sandbox: Sandbox) -> None:
    source = "def f(n): return [type('T' * 1000 + str(i), (), {})() for i in range(n)]\n"
    assert run_asserts(sandbox, source, "assert len(f(300)) == 300").passed == 1


def test_changes_of_a_program_to_the_standard_library_are_undone(sandbox: Sandbox) -> None:
    tests = (
        "import keyword, heapq, calendar\nx = [1, 2]",
        "assert f(keyword.kwlist) is f(keyword.kwlist) and f(calendar.mdays) == []",
        "assert f(keyword.softkwlist) == [] and f(heapq.__all__) == []\nassert f(errno.errorcode) == {}",
        "import html.entities as e\nassert f(e.codepoint2name) == {} and f(x) == [] and f(1) == 1",
        "f('exit')",
        "assert x == [] and keyword.kwlist == [] and f(keyword.kwlist) == []",
        "keyword.kwlist.append('own')\nassert f(keyword.kwlist) == []",
    )
    source = "import os\ndef f(x):\n    if x == 'exit': os._exit(0)\n    if x != 1: x.clear()\n    return x\n"
    report = run_asserts(sandbox, source, *(f"import errno\n{test}\nassert f(1) == 1" for test in tests))
    assert statuses(report) == ["pass"] * 4 + ["crash"] + ["pass"] * 2, report
    checks = (
        "import keyword\nassert len(f(keyword.kwlist)) > 30 and keyword.kwlist[0] == 'False' and 'own' not in keyword.kwlist",
        "import calendar, heapq\nassert len(f(calendar.mdays)) == 13 and 'heappush' in f(heapq.__all__)",
        "import keyword, errno, html.entities as e\nassert 'match' in keyword.softkwlist and f(errno.errorcode)[2] == 'ENOENT' and e.codepoint2name[38] == 'amp'",
    )
    assert run_asserts(sandbox, "def f(x): return x\n", *checks).passed == 3
