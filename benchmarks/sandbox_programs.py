"""Programs for the sandbox benchmarks, honest and hostile, each with its expected number of passes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from marl_ray.sandbox import Limits, Program

LIMITS = Limits(test_cpu_s=0.3, test_wall_s=2.0, program_wall_s=6.0, max_timeouts=1, max_crashes=1, memory_mb=128)

HONEST = '''
from typing import List
from collections import Counter
import math


def f(numbers: List[int], k: int) -> List[int]:
    """The k most frequent numbers, most frequent first, ties by value."""
    counts = Counter(numbers)
    ordered = sorted(counts, key=lambda number: (-counts[number], number))
    total = sum(math.isqrt(abs(number)) for number in numbers)
    return [total + {problem}] + ordered[:k]  # {tag}
'''
"""A solution of typical size. The tag makes every program different."""

GROUP = 8
"""Number of programs per problem, with equal tests, like the completions of a group."""

HOSTILE: dict[str, str] = {
    "exit": "import os\ndef f(*a): os._exit(0)\n",
    "exit at import": "import os\nos._exit(0)\n",
    "system exit": "def f(*a): raise SystemExit(0)\n",
    "always equal": "class T(list):\n    __eq__ = lambda s, o: True\ndef f(*a): return T()\n",
    "equal object": "class T:\n    __eq__ = lambda s, o: True\ndef f(*a): return T()\n",
    "fork": "import os\ndef f(*a):\n    while True: os.fork()\n",
    "execute": "import os\ndef f(*a): os.execv('/bin/true', ['true'])\n",
    "kill": "import os\ndef f(*a): os.kill(os.getppid(), 9)\n",
    "memory": "def f(*a):\n    held = []\n    while True: held.append(bytearray(1 << 24))\n",
    "spin": "def f(*a):\n    while True: pass\n",
    "recursion": "def f(*a): return f(*a)\n",
    "threads": "import threading\ndef spin():\n    while True: pass\n"
    "def f(*a):\n    for _ in range(4): threading.Thread(target=spin, daemon=True).start()\n    return 0\n",
    "descriptors": "import os\ndef f(*a):\n    while True: os.dup(1)\n",
    "files": "def f(*a): return open('/etc/passwd').read()\n",
    "flood": "def f(*a):\n    for _ in range(2000): print('x' * 1000)\n    return 0\n",
    "garbage": "import os\ndef f(*a):\n    os.write(3, os.urandom(4000))\n    return 0\n",
    "giant header": "import os\ndef f(*a):\n    os.write(3, b'\\xff' * 64)\n    return 0\n",
    "cyclic": "def f(*a):\n    x = []\n    x.append(x)\n    return x\n",
    "huge": "def f(*a): return 'x' * (4 << 20)\n",
    "patched": "import builtins, json\njson.dumps = lambda *a, **k: '[\"pass\"]'\n"
    "builtins.len = builtins.isinstance = lambda *a: True\ndef f(*a): return 0\n",
    "state": "import builtins, sys\nbuiltins.planted = sys.modules['planted'] = sys\ndef f(*a): return 0\n",
    "syntax": "def f(*a) return 1\n",
    "deep": "def f(*a):\n    x = ()\n    for _ in range(3000): x = (x,)\n    return x\n",
    "message": "def f(*a): raise ValueError('\\x1b[2J\\ud800' * 10000)\n",
}


@dataclass(frozen=True)
class KnownProgram:
    """A program and its expected number of passes; `name` is "honest", "wrong" or the name of a hostile program."""

    name: str
    program: Program
    passes: int


def honest(tag: int, *, right: bool = True) -> Program:
    """Return a program that passes all of its eight asserts, or all but the last."""
    problem = tag // GROUP
    source = HONEST.replace("{tag}", str(tag)).replace("{problem}", str(problem))
    rows: list[str] = []
    for size in range(8):
        numbers = [(problem + step * step) % 7 for step in range(3 * size)]
        total = sum(int(number**0.5) for number in numbers)
        ordered = sorted(set(numbers), key=lambda number: (-numbers.count(number), number))
        wanted = [total + problem, *ordered[:3]]
        if size == 7 and not right:
            wanted.append(-1)
        rows.append(f"assert f({numbers}, 3) == {wanted}")
    return Program(source, tuple(rows), "f", limits=LIMITS)


def mixture(count: int, *, hostile_share: float, seed: int) -> Iterator[KnownProgram]:
    """Yield different programs in random order: a share of hostile and else honest ones, of which a tenth are wrong."""
    generator = random.Random(seed)
    names = list(HOSTILE)
    for number in range(count):
        if generator.random() < hostile_share:
            name = generator.choice(names)
            tests = tuple(f"assert f({number}, {step}) == 'wanted-{number}'" for step in range(2))
            yield KnownProgram(name, Program(f"{HOSTILE[name]}# {number}\n", tests, "f", limits=LIMITS), 0)
        elif generator.random() < 0.1:
            yield KnownProgram("wrong", honest(number, right=False), 7)
        else:
            yield KnownProgram("honest", honest(number), 8)
