"""Generators and other iterators, and the order of side effects."""

from tests.sandbox.honest.program_set import ProgramSet

GENERATORS = ProgramSet("generators")
EFFECTS = ProgramSet("effects")

GENERATORS.asserts(
    "finite",
    "def f(n):\n    for i in range(n):\n        yield i * i\n",
    "assert list(f(4)) == [0, 1, 4, 9]",
    "assert sum(f(5)) == 30",
    "assert list(f(3)) == [0, 1, 3]",
)
GENERATORS.asserts(
    "infinite",
    "def f():\n    a, b = 0, 1\n    while True:\n        yield a\n        a, b = b, a + b\n",
    "g = f()\nassert [next(g) for _ in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13]",
    "from itertools import islice\nassert list(islice(f(), 30))[-1] == 514229",
    "for x in f():\n    if x > 100:\n        break\nassert x == 144",
    "assert next(x for x in f() if x > 1000) == 1597",
    "assert [x for x, _ in zip(f(), range(20))][-1] == 4181",
)
GENERATORS.asserts(
    "raises_after_three",
    """
    def f():
        for i in range(10):
            if i == 3:
                raise ValueError("three")
            yield i
    """,
    "g = f()\nassert [next(g), next(g), next(g)] == [0, 1, 2]",
    """
    got = []
    try:
        for x in f():
            got.append(x)
    except ValueError:
        got.append("stop")
    assert got == [0, 1, 2, "stop"]
    """,
    "assert list(f()) == []",
)
GENERATORS.asserts(
    "slow_to_say_more",
    """
    def f():
        yield 1
        yield 2
        yield 3
        while True:
            pass
    """,
    "g = f()\nassert next(g) == 1\nassert next(g) == 2\nassert next(g) == 3",
)
GENERATORS.asserts(
    "log_of_steps",
    """
    log = []
    def f(n):
        for i in range(n):
            log.append(i)
            yield i
    def steps():
        return list(log)
    """,
    "log.clear()\ng = f(5)\nnext(g)\nnext(g)\nassert steps() == [0, 1]",
    "h = f(3)\nassert list(h) == [0, 1, 2]\nassert steps()[-1] == 2",
)
GENERATORS.asserts(
    "send",
    "def f():\n    total = 0\n    while True:\n        got = yield total\n        total += got or 0\n",
    "g = f()\nnext(g)\nassert g.send(3) == 3\nassert g.send(4) == 7",
)
GENERATORS.asserts(
    "close_and_throw",
    """
    def f():
        try:
            yield 1
            yield 2
        except KeyError:
            yield "caught"
    """,
    "g = f()\nassert next(g) == 1\ng.close()\nassert list(g) == []",
    "g = f()\nnext(g)\nassert g.throw(KeyError('k')) == 'caught'",
)
GENERATORS.asserts(
    "yield_from",
    "def f(t):\n    for x in t:\n        if isinstance(x, list):\n            yield from f(x)\n"
    "        else:\n            yield x\n",
    "assert list(f([1, [2, [3, []]], 4])) == [1, 2, 3, 4]",
    "assert ''.join(f(['a', ['b', ['c']]])) == 'abc'",
)
GENERATORS.asserts(
    "exhausted",
    "def f(n):\n    return (i for i in range(n))\n",
    "g = f(2)\nassert list(g) == [0, 1]\nassert list(g) == []",
    "g = f(1)\nnext(g)\ntry:\n    next(g)\nexcept StopIteration:\n    ended = True\nassert ended",
    "assert next(f(0), 'none') == 'none'",
)
GENERATORS.asserts(
    "own_iterator_class",
    """
    class Countdown:
        def __init__(self, n):
            self.n = n
        def __iter__(self):
            return self
        def __next__(self):
            if self.n <= 0:
                raise StopIteration
            self.n -= 1
            return self.n + 1
    """,
    "assert list(Countdown(3)) == [3, 2, 1]",
    "c = Countdown(5)\nnext(c)\nassert c.n == 4",
    "assert max(Countdown(7)) == 7",
    "assert 2 in Countdown(3)",
    entry="Countdown",
)
GENERATORS.asserts(
    "builtin_iterators",
    "def f(xs):\n    return map(str, xs)\ndef g(xs):\n    return filter(None, xs)\ndef z(a, b):\n    return zip(a, b)\n"
    "def r(xs):\n    return reversed(xs)\n",
    "assert list(f([1, 2])) == ['1', '2']",
    "assert list(g([0, 1, '', 'a'])) == [1, 'a']",
    "assert dict(z('ab', [1, 2])) == {'a': 1, 'b': 2}",
    "assert list(r([1, 2, 3])) == [3, 2, 1]",
)
GENERATORS.asserts(
    "itertools",
    "import itertools\ndef f():\n    return itertools.cycle('ab')\ndef p(xs):\n    return itertools.permutations(xs)\n"
    "def c():\n    return itertools.count(5)\n",
    "it = f()\nassert [next(it) for _ in range(5)] == list('ababa')",
    "assert len(list(p([1, 2, 3]))) == 6",
    "assert next(c()) == 5",
)
GENERATORS.asserts(
    "two_at_once",
    "def f(n):\n    while n:\n        yield n\n        n -= 1\n",
    "a, b = f(3), f(2)\nassert [next(a), next(b), next(a), next(b)] == [3, 2, 2, 1]",
    "assert list(zip(f(2), f(3))) == [(2, 3), (1, 2)]",
)
GENERATORS.asserts(
    "is_a_generator",
    "def f(n):\n    yield n\n",
    "import types\nassert isinstance(f(1), types.GeneratorType)",
    "assert hasattr(f(1), '__next__')",
    "assert iter(g := f(1)) is g",
)
GENERATORS.asserts(
    "of_lists",
    "def f(xs, n):\n    for i in range(0, len(xs), n):\n        yield xs[i:i + n]\n",
    "assert list(f([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]",
    "assert [len(c) for c in f('abcdefg', 3)] == [3, 3, 1]",
    "first, *rest = f([1, 2, 3], 1)\nassert first == [1] and rest == [[2], [3]]",
)
GENERATORS.asserts(
    "takes_a_generator",
    "def f(it):\n    return [x + 1 for x in it]\n",
    "assert f(x for x in range(3)) == [1, 2, 3]",
    "assert f(iter([4])) == [5]",
    "assert f(range(2)) == [1, 2]",
    "assert f({1: 'a'}.keys()) == [2]",
)

EFFECTS.asserts(
    "order_of_calls",
    "calls = []\ndef f(x):\n    calls.append(x)\n    return x\ndef seen():\n    return calls\n",
    "f(1) + f(2) * f(3)\nassert seen() == [1, 2, 3]",
    "f(0) and f(9)\nassert seen()[-1] == 0",
)
EFFECTS.asserts(
    "chained_comparison",
    "n = 0\ndef f():\n    global n\n    n += 1\n    return n\n",
    "assert 0 < f() < 2",
    "assert f() == 2",
)
EFFECTS.asserts(
    "counter_in_default",
    "def f(x, seen=[]):\n    seen.append(x)\n    return len(seen)\n",
    "assert f(1) == 1",
    "assert f(1) == 2",
    "assert [f(0), f(0)] == [3, 4]",
)
EFFECTS.asserts(
    "random_with_seed",
    "import random\ndef f(seed):\n    random.seed(seed)\n    return [random.randint(0, 9) for _ in range(4)]\n",
    "assert f(3) == f(3)",
    "assert len(f(1)) == 4 and all(0 <= x <= 9 for x in f(1))",
    "import random\nrandom.seed(3)\nwanted = [random.randint(0, 9) for _ in range(4)]\nassert f(3) == wanted",
)
EFFECTS.asserts(
    "prints",
    "def f(x):\n    print('called with', x)\n    return x\n",
    "assert f(1) == 1",
    "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    f(2)\n"
    "assert out.getvalue() == 'called with 2\\n'",
)
EFFECTS.asserts(
    "time_passes",
    "import time\ndef f():\n    a = time.monotonic()\n    b = time.monotonic()\n    return b >= a\n",
    "assert f()",
    "assert f() is True",
)
EFFECTS.asserts(
    "lazy_property_runs_once",
    """
    import functools
    class P:
        runs = 0
        @functools.cached_property
        def value(self):
            P.runs += 1
            return 42
    """,
    "p = P()\nassert p.value == 42 and p.value == 42\nassert P.runs == 1",
    entry="P",
)
EFFECTS.asserts(
    "consumes_its_argument",
    "def f(it):\n    return next(it)\n",
    "it = iter([1, 2, 3])\nassert f(it) == 1\nassert next(it) == 2",
)
