"""Honest programs pass honest tests in every phrasing: beside the program, and then untrusted, where the judge cannot see
what the test sets or asks."""

from __future__ import annotations

import json

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox
from tests.sandbox.helpers import statuses

LIMITS = Limits(test_cpu_s=2.0, test_wall_s=4.0, program_wall_s=10.0)
CASES = {
    "input patched": (
        "def f():\n    return input()",
        "import builtins\nbuiltins.input = lambda *a: 'x'\nassert f() == 'x'",
    ),
    "input mock": (
        "def f():\n    return input()",
        "from unittest.mock import patch\nwith patch('builtins.input', return_value='7'):\n    assert f() == '7'",
    ),
    "stdin": (
        "import sys\ndef f():\n    return sys.stdin.readline()",
        "import sys, io\nsys.stdin = io.StringIO('hello\\n')\nassert f() == 'hello\\n'",
    ),
    "stdin from": (
        "def f():\n    return input()",
        "import sys\nfrom io import StringIO\nold = sys.stdin\nsys.stdin = StringIO('hi\\n')\ntry:\n    assert f() == 'hi'\nfinally:\n    sys.stdin = old",
    ),
    "stdout": (
        "def f():\n    print('hi')",
        "import sys, io\nold = sys.stdout\nsys.stdout = io.StringIO()\nf()\nout = sys.stdout.getvalue()\nsys.stdout = old\nassert out == 'hi\\n'",
    ),
    "redirect": (
        "def f():\n    print('hi')",
        "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b):\n    f()\nassert b.getvalue() == 'hi\\n'",
    ),
    "argv": (
        "import sys\ndef f():\n    return sys.argv[1]",
        "import sys\nsys.argv = ['a', 'b']\nassert f() == 'b'",
    ),
    "environ": (
        "import os\ndef f():\n    return os.environ['X']",
        "import os\nos.environ['X'] = '1'\nassert f() == '1'",
    ),
    "time": (
        "import time\ndef f():\n    return time.time()",
        "import time\ntime.time = lambda: 5\nassert f() == 5",
    ),
    "seed test->program": (
        "import random\ndef f():\n    return random.random()",
        "import random\nrandom.seed(1)\na = f()\nrandom.seed(1)\nassert f() == a",
    ),
    "seed value": (
        "import random\ndef f():\n    return random.randint(0, 100)",
        "import random\nrandom.seed(1)\na = random.randint(0,100)\nrandom.seed(1)\nassert f() == a",
    ),
    "logging": (
        "import logging\ndef f():\n    logging.getLogger('x').warning('w')",
        "import logging\nseen = []\nclass H(logging.Handler):\n    def emit(self, r):\n        seen.append(r.getMessage())\nlogging.getLogger('x').addHandler(H())\nf()\nassert seen == ['w']",
    ),
    "threads": (
        "def f(x):\n    return x * 2",
        "import threading\nout = []\nts = [threading.Thread(target=lambda i=i: out.append(f(i))) for i in range(8)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nassert sorted(out) == [0, 2, 4, 6, 8, 10, 12, 14]",
    ),
    "pool": (
        "def f(x):\n    return x * 2",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(4) as p:\n    assert list(p.map(f, range(20))) == [2 * i for i in range(20)]",
    ),
    "pool class": (
        "class C:\n    def __init__(self): self.n = 0\n    def inc(self): self.n += 1; return self.n",
        "from concurrent.futures import ThreadPoolExecutor\nc = C()\nwith ThreadPoolExecutor(4) as p:\n    r = list(p.map(lambda _: c.inc(), range(20)))\nassert sorted(r) == list(range(1, 21))\nassert c.n == 20",
    ),
    "stack_size": (
        "import threading, sys\ndef f(x):\n    r = []\n    def g(n): return 0 if n == 0 else 1 + g(n - 1)\n    sys.setrecursionlimit(10000)\n    threading.stack_size(1 << 29)\n    t = threading.Thread(target=lambda: r.append(g(x)))\n    t.start(); t.join()\n    return r[0]",
        "assert f(2000) == 2000",
    ),
    "stack_size 64M": (
        "import threading, sys\ndef f(x):\n    r = []\n    threading.stack_size(1 << 26)\n    t = threading.Thread(target=lambda: r.append(x))\n    t.start(); t.join()\n    return r[0]",
        "assert f(2000) == 2000",
    ),
    "listnode": (
        "def f(head):\n    n = 0\n    while head:\n        n += head.val; head = head.next\n    return n",
        "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val = val; self.next = next\nassert f(ListNode(1, ListNode(2))) == 3",
    ),
    "listnode made": (
        "def f(n):\n    head = None\n    for i in range(n):\n        head = ListNode(i, head)\n    return head",
        "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val = val; self.next = next\nh = f(2)\nassert h.val == 1 and h.next.val == 0",
    ),
    "dict keyed by objects": (
        "class P:\n    def __init__(self, x): self.x = x\n    def __hash__(self): return hash(self.x)\n    def __eq__(self, o): return self.x == o.x\ndef f(): return {P(1): 2}",
        "assert f()[P(1)] == 2",
    ),
    "set of objects": (
        "class P:\n    def __init__(self, x): self.x = x\n    def __hash__(self): return hash(self.x)\n    def __eq__(self, o): return self.x == o.x\ndef f(): return {P(1), P(1)}",
        "assert len(f()) == 1",
    ),
    "keys &": (
        "def f(): return {'a': 1, 'b': 2}.keys()",
        "assert f() & {'a'} == {'a'}",
    ),
    "keys & 2": (
        "def f(): return {'a': 1, 'b': 2}",
        "assert f().keys() & {'a', 'c'} == {'a'}",
    ),
    "memoryview": (
        "def f(x): return memoryview(x)",
        "assert f(b'abc')[0] == 97",
    ),
    "memoryview eq": (
        "def f(x): return memoryview(x)",
        "assert f(b'abc') == b'abc'",
    ),
    "memoryview arg": (
        "def f(x): return x[0]",
        "assert f(memoryview(b'abc')) == 97",
    ),
    "float subclass": (
        "class F(float): pass\ndef f(): return F(1.5)",
        "assert f() == 1.5 and f() + 1 == 2.5",
    ),
    "float subclass attr": (
        "class F(float):\n    unit = 'm'\ndef f(): return F(1.5)",
        "assert f().unit == 'm'\nassert f() * 2 == 3.0",
    ),
    "dict subclass": (
        "class D(dict):\n    def __getattr__(self, k): return self[k]\ndef f(): return D(a=1)",
        "assert f().a == 1\nassert f()['a'] == 1\nassert f() == {'a': 1}",
    ),
    "defaultdict": (
        "from collections import defaultdict\ndef f(): return defaultdict(int, a=1)",
        "d = f()\nassert d['a'] == 1 and d['zz'] == 0",
    ),
    "run_until_complete": (
        "async def f(x): return x + 1",
        "import asyncio\nloop = asyncio.new_event_loop()\nassert loop.run_until_complete(f(1)) == 2\nloop.close()",
    ),
    "asyncio.run": (
        "async def f(x): return x + 1",
        "import asyncio\nassert asyncio.run(f(1)) == 2",
    ),
    "gather": (
        "async def f(x): return x + 1",
        "import asyncio\nasync def main():\n    return await asyncio.gather(f(1), f(2))\nassert asyncio.run(main()) == [2, 3]",
    ),
    "empty loop": (
        "def f(x): return []",
        "for item in f(1):\n    assert item > 0",
    ),
    "empty loop2": (
        "def f(x): return [y for y in x if y > 5]",
        "r = f([1])\nfor a, b in zip(r, []):\n    assert a == b\nassert r == []",
    ),
    "all empty": (
        "def f(x): return []",
        "assert all(i > 0 for i in f(1))",
    ),
}
BUFFERED = """
import atexit, io, sys
sys.stdout = io.StringIO()
atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))
print(int(input()) * 2)
"""


@pytest.mark.parametrize("name", CASES)
def test_an_honest_program_passes(sandbox: Sandbox, name: str) -> None:
    source, test = CASES[name]
    entry_point = "C" if source.startswith("class C") else "f"
    report = sandbox.run(Program(source, test, entry_point, limits=LIMITS))
    assert set(statuses(report)) == {"pass"}, report.tests
    assert report.wall_s < 2


def test_output_that_a_script_writes_at_its_end_is_kept(sandbox: Sandbox) -> None:
    case = json.dumps({"stdin": "21\n", "stdout": "42\n"})
    assert statuses(sandbox.run(Program(BUFFERED, (case,), "main", limits=LIMITS))) == ["pass"]


def test_a_class_of_the_tests_with_data_is_not_shown_to_the_program(sandbox: Sandbox) -> None:
    test = "class Answers:\n    def __init__(self):\n        self.right = 17\nassert f() == Answers().right"
    spy = "def f():\n    return Answers().right"
    assert statuses(sandbox.run(Program(spy, test, "f", limits=LIMITS))) == ["error"]


def test_a_loop_over_an_empty_result_earns_no_trust(sandbox: Sandbox) -> None:
    report = sandbox.run(Program("def f(): return []", "for item in f():\n    assert item > 0", "f", limits=LIMITS))
    assert (report.passed, report.trusted_passed) == (1, 0)
