"""Arguments changed in place, shared objects, and module globals that change."""

from tests.sandbox.honest.program_set import ProgramSet

CHANGES = ProgramSet("changes")
GLOBALS = ProgramSet("globals")

CHANGES.asserts(
    "positional",
    "def f(xs):\n    xs.sort()\n",
    "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]",
    "a = [1]\nassert f(a) is None",
)
CHANGES.asserts(
    "by_keyword",
    "def f(*, xs, d=None):\n    xs.append(1)\n    if d is not None:\n        d['n'] = len(xs)\n",
    "a = []\nf(xs=a)\nassert a == [1]",
    "a, d = [0], {}\nf(xs=a, d=d)\nassert a == [0, 1] and d == {'n': 2}",
)
CHANGES.asserts(
    "nested",
    "def f(m):\n    for row in m:\n        row.reverse()\n",
    "m = [[1, 2], [3, 4]]\nrow = m[0]\nf(m)\nassert m == [[2, 1], [4, 3]]\nassert row == [2, 1]\nassert m[0] is row",
    "d = {'k': [1, 2]}\ninner = d['k']\nf([inner])\nassert d == {'k': [2, 1]}",
)
CHANGES.asserts(
    "in_a_tuple",
    "def f(pair):\n    pair[0].append(pair[1])\n",
    "a = [1]\nf((a, 2))\nassert a == [1, 2]",
    "t = ([], 5)\nf(t)\nassert t == ([5], 5)",
)
CHANGES.asserts(
    "aliased_arguments",
    "def f(a, b):\n    a.append(1)\n    return len(b)\n",
    "x = []\nassert f(x, x) == 1\nassert x == [1]",
    "assert f([], []) == 0",
)
CHANGES.asserts(
    "aliased_rows",
    "def f(m):\n    m[0][0] = 9\n    return m\n",
    "m = [[0] * 2] * 2\nassert f(m) == [[9, 0], [9, 0]]\nassert m == [[9, 0], [9, 0]]",
)
CHANGES.asserts(
    "returned_is_the_argument",
    "def f(xs):\n    xs.append(4)\n    return xs\n",
    "a = [1]\nb = f(a)\nassert a == b == [1, 4]",
    "a = [1]\nb = f(a)\nb.append(5)\nassert a == [1, 4, 5]",
    "a = []\nassert f(a) is a",
)
CHANGES.asserts(
    "returned_holds_the_argument",
    "def f(x):\n    return {'it': x}\n",
    "a = [1]\nr = f(a)\na.append(2)\nassert r == {'it': [1, 2]}",
)
CHANGES.asserts(
    "replaces_contents",
    "def f(xs):\n    xs[:] = [x for x in xs if x % 2]\n    return len(xs)\n",
    "a = [1, 2, 3]\nassert f(a) == 2\nassert a == [1, 3]",
)
CHANGES.asserts(
    "does_not_change",
    "def f(xs):\n    return sorted(xs)\n",
    "a = [2, 1]\nassert f(a) == [1, 2]\nassert a == [2, 1]",
    "a = [2, 1]\nf(a)\nassert a == [1, 2]",
)
CHANGES.asserts(
    "of_every_kind",
    """
    from collections import deque
    def f(x):
        if isinstance(x, dict):
            x.pop('a', None)
        elif isinstance(x, set):
            x.discard(1)
        elif isinstance(x, deque):
            x.rotate(1)
        elif isinstance(x, bytearray):
            x.reverse()
    """,
    "d = {'a': 1, 'b': 2}\nf(d)\nassert d == {'b': 2}",
    "s = {1, 2}\nf(s)\nassert s == {2}",
    "from collections import deque\nq = deque([1, 2, 3])\nf(q)\nassert list(q) == [3, 1, 2]",
    "b = bytearray(b'abc')\nf(b)\nassert b == b'cba'",
)
CHANGES.asserts(
    "order_of_a_dict",
    "def f(d):\n    d['x'] = d.pop('x')\n",
    "d = {'x': 1, 'y': 2}\nf(d)\nassert list(d) == ['y', 'x']",
)
CHANGES.asserts(
    "then_raises",
    "def f(xs):\n    xs.append(1)\n    raise ValueError('after the change')\n",
    "a = []\ntry:\n    f(a)\nexcept ValueError:\n    pass\nassert a == [1]",
)
CHANGES.asserts(
    "counter_argument",
    "def f(c):\n    c['a'] += 1\n    return c.most_common(1)\n",
    "from collections import Counter\nc = Counter('ab')\nassert f(c) == [('a', 2)]\nassert c['a'] == 2",
)
CHANGES.asserts(
    "stored_for_later",
    "class Box:\n    def __init__(self, xs):\n        self.xs = xs\n    def add(self, x):\n        self.xs.append(x)\n",
    "a = []\nb = Box(a)\nb.add(1)\nassert a == [1]",
    "a = [5]\nb = Box(a)\na.append(6)\nassert b.xs == [5, 6]",
    entry="Box",
)
CHANGES.asserts(
    "a_method_changes_its_argument",
    "class Sorter:\n    def sort(self, xs):\n        xs.sort()\n        return self\n",
    "a = [2, 1]\nSorter().sort(a)\nassert a == [1, 2]",
    entry="Sorter",
)
CHANGES.asserts(
    "cyclic_argument",
    "def f(xs):\n    return len(xs)\n",
    "a = [1]\na.append(a)\nassert f(a) == 2",
)
CHANGES.asserts(
    "linked_list",
    "class Node:\n    def __init__(self, value, next=None):\n        self.value, self.next = value, next\n"
    "def f(head):\n    out = []\n    while head:\n        out.append(head.value)\n        head = head.next\n"
    "    return out\n",
    "assert f(Node(1, Node(2, Node(3)))) == [1, 2, 3]",
    "n = Node(1)\nn.next = Node(5)\nassert f(n) == [1, 5]",
    "assert f(None) == []",
)

GLOBALS.asserts(
    "counter",
    "count = 0\ndef f():\n    global count\n    count += 1\n    return count\n",
    "assert count == 0",
    "f()\nf()\nassert count == 2",
    "assert f() == count",
)
GLOBALS.asserts(
    "cache",
    "cache = {}\ndef f(n):\n    if n not in cache:\n        cache[n] = n * n\n    return cache[n]\n",
    "f(3)\nassert cache == {3: 9}",
    "f(4)\nassert 4 in cache and len(cache) == 2",
    "cache.clear()\nf(1)\nassert cache == {1: 1}",
)
GLOBALS.asserts(
    "constants",
    "LIMIT = 10\nNAMES = ('a', 'b')\nTABLE = {'x': [1, 2]}\ndef f(x):\n    return min(x, LIMIT)\n",
    "assert f(20) == LIMIT",
    "assert NAMES == ('a', 'b') and TABLE['x'] == [1, 2]",
    "TABLE['x'].append(3)\nassert TABLE == {'x': [1, 2, 3]}",
)
GLOBALS.asserts(
    "tests_set_a_name",
    "rate = 1\ndef f(x):\n    return x * rate\n",
    "assert f(2) == 2",
    "rate = 5\nassert f(2) == 10",
)
GLOBALS.asserts(
    "names_made_later",
    "def f():\n    global made\n    made = [1, 2]\n",
    "f()\nassert made == [1, 2]",
)
GLOBALS.asserts(
    "several_functions",
    "stack = []\ndef push(x):\n    stack.append(x)\ndef pop():\n    return stack.pop()\ndef f():\n"
    "    return len(stack)\n",
    "push(1)\npush(2)\nassert f() == 2",
    "assert pop() == 2\nassert stack == [1]",
)
GLOBALS.asserts(
    "module_imported_by_the_program",
    "import math\nfrom collections import Counter\ndef f(x):\n    return math.sqrt(x)\n",
    "assert f(16) == 4.0",
    "assert math.isclose(f(2), 2 ** 0.5)",
    "assert Counter('aab')['a'] == 2",
)
GLOBALS.asserts(
    "class_attribute",
    "class A:\n    made = 0\n    def __init__(self):\n        A.made += 1\ndef f():\n    return A.made\n",
    "A()\nA()\nassert A.made == 2",
    "assert f() == 2",
)
