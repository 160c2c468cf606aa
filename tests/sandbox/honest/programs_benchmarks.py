"""Tasks in the style of MBPP, HumanEval and ClassEval."""

from tests.sandbox.honest.program_set import ProgramSet

BENCHMARKS = ProgramSet("benchmarks")
SUITES = ProgramSet("unittest")

BENCHMARKS.asserts(
    "shared_elements",
    "def f(a, b):\n    return tuple(set(a) & set(b))\n",
    "assert set(f((3, 4, 5, 6), (5, 7, 4, 10))) == set((4, 5))",
    "assert set(f((1, 2), (3, 4))) == set()",
    "assert f((1,), (1,)) == (1,)",
)
BENCHMARKS.asserts(
    "minimum_cost",
    "def f(cost, m, n):\n    best = [[0] * (n + 1) for _ in range(m + 1)]\n    for i in range(m + 1):\n"
    "        for j in range(n + 1):\n            paths = []\n            if i:\n"
    "                paths.append(best[i - 1][j])\n"
    "            if j:\n                paths.append(best[i][j - 1])\n            if i and j:\n"
    "                paths.append(best[i - 1][j - 1])\n            best[i][j] = cost[i][j] + min(paths, default=0)\n"
    "    return best[m][n]\n",
    "assert f([[1, 2, 3], [4, 8, 2], [1, 5, 3]], 2, 2) == 8",
    "assert f([[5]], 0, 0) == 5",
    "assert f([[1, 2], [3, 4]], 1, 1) == 6",
)
BENCHMARKS.asserts(
    "wrong_on_purpose",
    "def f(n):\n    return n % 2 == 0\n",
    "assert f(2) == True",
    "assert f(3) == True",
    "assert f('a') == False",
    "assert f(0)",
)
BENCHMARKS.asserts(
    "heap",
    "import heapq\ndef f(xs, n):\n    return heapq.nlargest(n, xs)\n",
    "assert f([25, 35, 22, 85], 3) == [85, 35, 25]",
    "assert f([], 3) == []",
)
BENCHMARKS.asserts(
    "regular_expressions",
    "import re\ndef f(s):\n    return re.sub(r'[aeiou]', '', s)\ndef g(s):\n    return bool(re.fullmatch(r'ab*', s))\n",
    "assert f('education') == 'dctn'",
    "assert g('abbb') and not g('ba')",
)
BENCHMARKS.asserts(
    "test_with_helper",
    "def f(xs):\n    return sorted(set(xs))\n",
    "def unique(xs):\n    return len(xs) == len(set(xs))\nassert unique(f([1, 1, 2]))",
    "for xs in ([], [1], [2, 1]):\n    assert f(xs) == sorted(xs)",
    "assert all(f([x]) == [x] for x in range(5))",
)
BENCHMARKS.check(
    "close_elements",
    "from typing import List\n\ndef f(numbers: List[float], threshold: float) -> bool:\n"
    "    return any(abs(a - b) < threshold for i, a in enumerate(numbers) for b in numbers[:i])\n",
    """
    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True
    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.05) == False
    assert candidate([], 1) is False
    """,
)
BENCHMARKS.check(
    "paren_groups",
    "def f(s):\n    out, depth, part = [], 0, ''\n    for c in s:\n        if c in '()':\n            part += c\n"
    "            depth += 1 if c == '(' else -1\n            if depth == 0:\n                out.append(part)\n"
    "                part = ''\n    return out\n",
    """
    assert candidate('(()()) ((()))') == ['(()())', '((()))']
    assert candidate('') == [], 'empty'
    for s in ('()', '(())'):
        assert candidate(s) == [s]
    """,
)
BENCHMARKS.check(
    "random_inputs",
    "def f(xs):\n    xs = list(xs)\n    for i in range(len(xs)):\n        for j in range(len(xs) - 1 - i):\n"
    "            if xs[j] > xs[j + 1]:\n                xs[j], xs[j + 1] = xs[j + 1], xs[j]\n    return xs\n",
    """
    import random
    rng = random.Random(5)
    for _ in range(20):
        xs = [rng.randint(-9, 9) for _ in range(rng.randint(0, 12))]
        assert candidate(xs) == sorted(xs), xs
    assert candidate((2, 1)) == [1, 2]
    """,
)
BENCHMARKS.check(
    "inverse_functions",
    "def encode(s):\n    return s[1:] + s[:1]\n\ndef f(s):\n    return s[-1:] + s[:-1]\n",
    """
    for s in ('', 'a', 'abc', 'hello'):
        assert candidate(encode(s)) == s
    assert encode('ab') == 'ba'
    """,
)
BENCHMARKS.check(
    "shared_setup",
    "def f(xs, x):\n    xs.append(x)\n    return xs\n",
    """
    xs = [1]
    ys = candidate(xs, 2)
    assert ys == [1, 2]
    assert xs == [1, 2]
    candidate(xs, 3)
    assert len(xs) == 3
    """,
)
BENCHMARKS.check(
    "tolerance",
    "def f(xs):\n    x = 0.0\n    for _ in range(200):\n        value = sum(c * x ** i for i, c in enumerate(xs))\n"
    "        slope = sum(i * c * x ** (i - 1) for i, c in enumerate(xs) if i)\n        x -= value / slope\n"
    "    return x\n",
    """
    import math
    assert math.fabs(candidate([-6.0, 2.0]) - 3.0) < 1e-6
    assert abs(candidate([-1, 3, -3, 1]) - 1) < 1e-2
    """,
)
BENCHMARKS.check(
    "strings_and_none",
    "def f(xs):\n    return max(xs, key=len) if xs else None\n",
    """
    assert candidate([]) == None
    assert candidate(['x', 'yyy', 'zz']) == 'yyy'
    assert candidate(['a', 'b']) == 'b'
    """,
)
BENCHMARKS.check(
    "mixed_types",
    "def f(x, y):\n    a, b = (float(str(v).replace(',', '.')) for v in (x, y))\n"
    "    return None if a == b else x if a > b else y\n",
    """
    assert candidate(1, 2.5) == 2.5
    assert candidate("1,5", 1) == "1,5"
    assert candidate("1", 1) is None
    """,
)

SUITES.unittest(
    "cart",
    """
    class C:
        def __init__(self):
            self.items = {}
        def add(self, name, n=1):
            if n < 1:
                raise ValueError('count')
            self.items[name] = self.items.get(name, 0) + n
        def total(self):
            return sum(self.items.values())
    """,
    """
    def setUp(self):
        self.c = C()
    def test_add(self):
        self.c.add('a', 2)
        self.assertEqual(self.c.items, {'a': 2})
    def test_total(self):
        self.c.add('a')
        self.c.add('b', 3)
        self.assertEqual(self.c.total(), 4)
    def test_refuses(self):
        with self.assertRaises(ValueError):
            self.c.add('a', 0)
    def test_wrong(self):
        self.assertEqual(self.c.total(), 1)
    def test_error(self):
        self.c.remove('a')
    """,
)
SUITES.unittest(
    "subtests_and_messages",
    "class C:\n    @staticmethod\n    def square(x):\n        return x * x\n",
    """
    def test_all(self):
        for x in range(5):
            with self.subTest(x=x):
                self.assertEqual(C.square(x), x ** 2)
    def test_some(self):
        for x in range(3):
            with self.subTest(x=x):
                self.assertLess(C.square(x), 3)
    def test_close(self):
        self.assertAlmostEqual(C.square(1.1), 1.21, places=7)
    @unittest.skip('not now')
    def test_skipped(self):
        self.fail()
    """,
)
SUITES.unittest(
    "class_setup",
    "class C:\n    made = 0\n    def __init__(self):\n        C.made += 1\n",
    """
    def test_makes_one(self):
        before = C.made
        C()
        self.assertEqual(C.made, before + 1)
    def test_type(self):
        self.assertIsInstance(C(), C)
    @unittest.expectedFailure
    def test_expected(self):
        self.assertEqual(1, 2)
    """,
)
SUITES.unittest(
    "mock_and_output",
    "class C:\n    def greet(self):\n        print('hi')\n        return input()\n",
    """
    def test_mock(self):
        from unittest.mock import patch
        with patch('builtins.input', return_value='yo'):
            self.assertEqual(C().greet(), 'yo')
    def test_output(self):
        import io, contextlib
        from unittest.mock import patch
        out = io.StringIO()
        with contextlib.redirect_stdout(out), patch('builtins.input', return_value=''):
            C().greet()
        self.assertEqual(out.getvalue(), 'hi\\n')
    """,
)
SUITES.unittest(
    "database",
    """
    import sqlite3
    class C:
        def __init__(self):
            self.db = sqlite3.connect(':memory:')
            self.db.execute('create table users (name text, age int)')
        def insert(self, name, age):
            self.db.execute('insert into users values (?, ?)', (name, age))
        def oldest(self):
            row = self.db.execute('select name from users order by age desc').fetchone()
            return row and row[0]
    """,
    """
    def test_oldest(self):
        c = C()
        c.insert('a', 3)
        c.insert('b', 5)
        self.assertEqual(c.oldest(), 'b')
    def test_empty(self):
        self.assertIsNone(C().oldest())
    """,
)
SUITES.unittest(
    "asynchronous",
    "import asyncio\nclass C:\n    async def add(self, a, b):\n        await asyncio.sleep(0)\n        return a + b\n",
    """
    def test_add(self):
        self.assertEqual(asyncio.run(C().add(1, 2)), 3)
    def test_gather(self):
        async def both():
            return await asyncio.gather(C().add(1, 2), C().add(3, 4))
        self.assertEqual(asyncio.run(both()), [3, 7])
    """,
)
