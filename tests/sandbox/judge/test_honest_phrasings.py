"""Honest programs pass honest tests in every phrasing.

Where the judge cannot see something that a test sets or asks, the test runs beside the program, and its pass is
untrusted.
"""

from __future__ import annotations

import json

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox
from tests.sandbox.helpers import statuses

LIMITS = Limits(test_cpu_s=2.0, test_wall_s=4.0, program_wall_s=10.0)
HONEST = """
=== input patched
def f():
    return input()
---
import builtins
builtins.input = lambda *a: 'x'
assert f() == 'x'
=== input mock
def f():
    return input()
---
from unittest.mock import patch
with patch('builtins.input', return_value='7'):
    assert f() == '7'
=== stdin
import sys
def f():
    return sys.stdin.readline()
---
import sys, io
sys.stdin = io.StringIO('hello\\n')
assert f() == 'hello\\n'
=== stdin from
def f():
    return input()
---
import sys
from io import StringIO
old = sys.stdin
sys.stdin = StringIO('hi\\n')
try:
    assert f() == 'hi'
finally:
    sys.stdin = old
=== stdout
def f():
    print('hi')
---
import sys, io
old = sys.stdout
sys.stdout = io.StringIO()
f()
out = sys.stdout.getvalue()
sys.stdout = old
assert out == 'hi\\n'
=== redirect
def f():
    print('hi')
---
import io, contextlib
b = io.StringIO()
with contextlib.redirect_stdout(b):
    f()
assert b.getvalue() == 'hi\\n'
=== argv
import sys
def f():
    return sys.argv[1]
---
import sys
sys.argv = ['a', 'b']
assert f() == 'b'
=== environ
import os
def f():
    return os.environ['X']
---
import os
os.environ['X'] = '1'
assert f() == '1'
=== imported environ
import os
def f():
    return os.environ['X']
---
from os import environ
environ.update(X='1')
assert f() == '1'
=== time
import time
def f():
    return time.time()
---
import time
time.time = lambda: 5
assert f() == 5
=== seed test->program
import random
def f():
    return random.random()
---
import random
random.seed(1)
a = f()
random.seed(1)
assert f() == a
=== seed value
import random
def f():
    return random.randint(0, 100)
---
import random
random.seed(1)
a = random.randint(0,100)
random.seed(1)
assert f() == a
=== logging
import logging
def f():
    logging.getLogger('x').warning('w')
---
import logging
seen = []
class H(logging.Handler):
    def emit(self, r):
        seen.append(r.getMessage())
logging.getLogger('x').addHandler(H())
f()
assert seen == ['w']
=== threads
def f(x):
    return x * 2
---
import threading
out = []
ts = [threading.Thread(target=lambda i=i: out.append(f(i))) for i in range(8)]
[t.start() for t in ts]
[t.join() for t in ts]
assert sorted(out) == [0, 2, 4, 6, 8, 10, 12, 14]
=== pool
def f(x):
    return x * 2
---
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as p:
    assert list(p.map(f, range(20))) == [2 * i for i in range(20)]
=== pool class
class C:
    def __init__(self): self.n = 0
    def inc(self): self.n += 1; return self.n
---
from concurrent.futures import ThreadPoolExecutor
c = C()
with ThreadPoolExecutor(4) as p:
    r = list(p.map(lambda _: c.inc(), range(20)))
assert sorted(r) == list(range(1, 21))
assert c.n == 20
=== stack_size
import threading, sys
def f(x):
    r = []
    def g(n): return 0 if n == 0 else 1 + g(n - 1)
    sys.setrecursionlimit(10000)
    threading.stack_size(1 << 29)
    t = threading.Thread(target=lambda: r.append(g(x)))
    t.start(); t.join()
    return r[0]
---
assert f(2000) == 2000
=== stack_size 64M
import threading, sys
def f(x):
    r = []
    threading.stack_size(1 << 26)
    t = threading.Thread(target=lambda: r.append(x))
    t.start(); t.join()
    return r[0]
---
assert f(2000) == 2000
=== listnode
def f(head):
    n = 0
    while head:
        n += head.val; head = head.next
    return n
---
class ListNode:
    def __init__(self, val=0, next=None):
        self.val = val; self.next = next
assert f(ListNode(1, ListNode(2))) == 3
=== listnode made
def f(n):
    head = None
    for i in range(n):
        head = ListNode(i, head)
    return head
---
class ListNode:
    def __init__(self, val=0, next=None):
        self.val = val; self.next = next
h = f(2)
assert h.val == 1 and h.next.val == 0
=== dict keyed by objects
class P:
    def __init__(self, x): self.x = x
    def __hash__(self): return hash(self.x)
    def __eq__(self, o): return self.x == o.x
def f(): return {P(1): 2}
---
assert f()[P(1)] == 2
=== set of objects
class P:
    def __init__(self, x): self.x = x
    def __hash__(self): return hash(self.x)
    def __eq__(self, o): return self.x == o.x
def f(): return {P(1), P(1)}
---
assert len(f()) == 1
=== keys &
def f(): return {'a': 1, 'b': 2}.keys()
---
assert f() & {'a'} == {'a'}
=== keys & 2
def f(): return {'a': 1, 'b': 2}
---
assert f().keys() & {'a', 'c'} == {'a'}
=== memoryview
def f(x): return memoryview(x)
---
assert f(b'abc')[0] == 97
=== memoryview eq
def f(x): return memoryview(x)
---
assert f(b'abc') == b'abc'
=== memoryview arg
def f(x): return x[0]
---
assert f(memoryview(b'abc')) == 97
=== float subclass
class F(float): pass
def f(): return F(1.5)
---
assert f() == 1.5 and f() + 1 == 2.5
=== float subclass attr
class F(float):
    unit = 'm'
def f(): return F(1.5)
---
assert f().unit == 'm'
assert f() * 2 == 3.0
=== dict subclass
class D(dict):
    def __getattr__(self, k): return self[k]
def f(): return D(a=1)
---
assert f().a == 1
assert f()['a'] == 1
assert f() == {'a': 1}
=== defaultdict
from collections import defaultdict
def f(): return defaultdict(int, a=1)
---
d = f()
assert d['a'] == 1 and d['zz'] == 0
=== run_until_complete
async def f(x): return x + 1
---
import asyncio
loop = asyncio.new_event_loop()
assert loop.run_until_complete(f(1)) == 2
loop.close()
=== asyncio.run
async def f(x): return x + 1
---
import asyncio
assert asyncio.run(f(1)) == 2
=== gather
async def f(x): return x + 1
---
import asyncio
async def main():
    return await asyncio.gather(f(1), f(2))
assert asyncio.run(main()) == [2, 3]
=== empty loop
def f(x): return []
---
for item in f(1):
    assert item > 0
=== empty loop2
def f(x): return [y for y in x if y > 5]
---
r = f([1])
for a, b in zip(r, []):
    assert a == b
assert r == []
=== all empty
def f(x): return []
---
assert all(i > 0 for i in f(1))
"""
"""Programs and their tests: a name, a program, a line of dashes, and the tests."""
CASES = HONEST.split("=== ")[1:]
BUFFERED = """
import atexit, io, sys
sys.stdout = io.StringIO()
atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))
print(int(input()) * 2)
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.partition("\n")[0])
def test_an_honest_program_passes(sandbox: Sandbox, case: str) -> None:
    source, _, test = case.partition("\n")[2].partition("---\n")
    entry_point = "C" if source.startswith("class C") else "f"
    report = sandbox.run(Program(source, test, entry_point, limits=LIMITS))
    assert set(statuses(report)) == {"pass"}, report.tests


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
