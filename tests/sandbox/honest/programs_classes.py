"""Programs that define classes, tested by asserts."""

from tests.sandbox.honest.program_set import ProgramSet

CLASSES = ProgramSet("classes")
OPERATORS = ProgramSet("operators")

CLASSES.asserts(
    "account",
    """
    class Account:
        def __init__(self, owner, balance=0):
            self.owner, self.balance = owner, balance
        def deposit(self, x):
            if x <= 0:
                raise ValueError('amount')
            self.balance += x
            return self.balance
    """,
    "a = Account('eve')\nassert a.deposit(5) == 5\nassert a.balance == 5 and a.owner == 'eve'",
    "a = Account('eve', 3)\na.balance = 10\nassert a.deposit(1) == 11",
    "try:\n    Account('x').deposit(0)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok",
    "assert Account('a').overdraft == 0",
    entry="Account",
)
CLASSES.asserts(
    "properties",
    """
    class Celsius:
        def __init__(self, t):
            self._t = t
        @property
        def fahrenheit(self):
            return self._t * 9 / 5 + 32
        @fahrenheit.setter
        def fahrenheit(self, f):
            self._t = (f - 32) * 5 / 9
    """,
    "assert Celsius(100).fahrenheit == 212.0",
    "c = Celsius(0)\nc.fahrenheit = 212\nassert c._t == 100.0",
    entry="Celsius",
)
CLASSES.asserts(
    "static_and_class_methods",
    "class P:\n    def __init__(self, n):\n        self.n = n\n    @classmethod\n    def parse(cls, s):\n"
    "        return cls(int(s))\n    @staticmethod\n    def add(a, b):\n        return a + b\n",
    "assert P.parse('5').n == 5",
    "assert P.add(1, 2) == 3 and P(1).add(2, 3) == 5",
    entry="P",
)
CLASSES.asserts(
    "inheritance",
    "from abc import ABC, abstractmethod\nclass Shape(ABC):\n    @abstractmethod\n    def area(self): ...\n"
    "    def twice(self):\n        return 2 * self.area()\nclass Square(Shape):\n    def __init__(self, a):\n"
    "        self.a = a\n    def area(self):\n        return self.a ** 2\n",
    "assert Square(3).twice() == 18",
    "assert issubclass(Square, Shape)",
    "assert isinstance(Square(1), Shape)",
    "try:\n    Shape()\n    ok = False\nexcept TypeError:\n    ok = True\nassert ok",
    entry="Square",
)
CLASSES.asserts(
    "own_equality_and_hash",
    "class Point:\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n    def __eq__(self, o):\n"
    "        return isinstance(o, Point) and (self.x, self.y) == (o.x, o.y)\n    def __hash__(self):\n"
    "        return hash((self.x, self.y))\n    def __repr__(self):\n        return f'Point({self.x}, {self.y})'\n",
    "assert Point(1, 2) == Point(1, 2)",
    "assert Point(1, 2) != Point(2, 1)",
    "assert repr(Point(1, 2)) == 'Point(1, 2)'",
    "assert len({Point(0, 0), Point(0, 0)}) == 1",
    "assert Point(0, 1) in [Point(0, 0), Point(0, 1)]",
    entry="Point",
)
CLASSES.asserts(
    "attributes",
    "class A:\n    pass\ndef f():\n    a = A()\n    a.x = [1]\n    return a\n",
    "a = f()\nassert a.x == [1] and hasattr(a, 'x') and not hasattr(a, 'y')",
    "a = f()\nsetattr(a, 'y', 2)\nassert getattr(a, 'y') == 2 and getattr(a, 'z', 0) == 0",
    "a = f()\ndel a.x\nassert not hasattr(a, 'x')",
    "assert f().__class__.__name__ == 'A'",
    "assert vars(f()) == {'x': [1]}",
    "a = f()\na.x.append(2)\nassert a.x == [1, 2]",
)
CLASSES.asserts(
    "tree",
    """
    class Node:
        def __init__(self, v, left=None, right=None):
            self.v, self.left, self.right = v, left, right
    def insert(root, v):
        if root is None:
            return Node(v)
        if v < root.v:
            root.left = insert(root.left, v)
        else:
            root.right = insert(root.right, v)
        return root
    def f(root):
        return f(root.left) + [root.v] + f(root.right) if root else []
    """,
    "root = None\nfor v in [3, 1, 2]:\n    root = insert(root, v)\nassert f(root) == [1, 2, 3]\n"
    "assert root.left.v == 1",
    "assert insert(None, 1).left is None",
    "assert f(Node(2, Node(1), Node(3))) == [1, 2, 3]",
)
CLASSES.asserts(
    "context_manager",
    """
    log = []
    class Session:
        def __enter__(self):
            log.append('in')
            return self
        def __exit__(self, kind, error, trace):
            log.append('out' if kind is None else kind.__name__)
            return kind is KeyError
        def work(self):
            return 'done'
    def f():
        return list(log)
    """,
    "with Session() as s:\n    r = s.work()\nassert r == 'done' and f() == ['in', 'out']",
    "with Session():\n    raise KeyError('x')\nassert f()[-1] == 'KeyError'",
    "try:\n    with Session():\n        raise ValueError\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok",
)
CLASSES.asserts(
    "decorated_context_manager",
    "import contextlib\nstate = []\n@contextlib.contextmanager\ndef f(x):\n    state.append(x)\n    yield x * 2\n"
    "    state.pop()\ndef depth():\n    return len(state)\n",
    "with f(3) as y:\n    inside = depth()\nassert (y, inside, depth()) == (6, 1, 0)",
)
CLASSES.asserts(
    "singleton",
    "class One:\n    _it = None\n    def __new__(cls):\n        if cls._it is None:\n"
    "            cls._it = super().__new__(cls)\n        return cls._it\n",
    "assert One() is One()",
    entry="One",
)
CLASSES.asserts(
    "lru_cache_class",
    """
    from collections import OrderedDict
    class LRU:
        def __init__(self, size):
            self.size, self.data = size, OrderedDict()
        def get(self, k):
            if k not in self.data:
                return -1
            self.data.move_to_end(k)
            return self.data[k]
        def put(self, k, v):
            self.data[k] = v
            self.data.move_to_end(k)
            if len(self.data) > self.size:
                self.data.popitem(last=False)
    """,
    "c = LRU(2)\nc.put(1, 1)\nc.put(2, 2)\nc.get(1)\nc.put(3, 3)\nassert c.get(2) == -1 and c.get(1) == 1",
    "c = LRU(1)\nc.put('a', [1])\nassert list(c.data) == ['a'] and len(c.data) == 1",
    entry="LRU",
)
CLASSES.asserts(
    "object_into_a_method",
    "class V:\n    def __init__(self, x):\n        self.x = x\n    def dot(self, other):\n"
    "        return self.x * other.x\n"
    "def f(vs):\n    return sum(v.x for v in vs)\n",
    "a, b = V(2), V(3)\nassert a.dot(b) == 6",
    "assert f([V(1), V(2)]) == 3",
    entry="V",
)
CLASSES.asserts(
    "slots_and_missing_attribute",
    "class S:\n    __slots__ = ('a',)\n    def __init__(self):\n        self.a = 1\n",
    "try:\n    S().b = 2\n    ok = False\nexcept AttributeError:\n    ok = True\nassert ok",
    "try:\n    S().c\n    ok = False\nexcept AttributeError:\n    ok = True\nassert ok",
    entry="S",
)
CLASSES.asserts(
    "object_changes_between_tests",
    "class Queue:\n    def __init__(self):\n        self.items = []\n    def put(self, x):\n"
    "        self.items.append(x)\n"
    "    def get(self):\n        return self.items.pop(0)\n    def __len__(self):\n        return len(self.items)\n",
    "q = Queue()\nq.put(1)\nq.put(2)\nassert len(q) == 2",
    "assert q.get() == 1 and len(q) == 1",
    "q.get()\nassert not q",
    entry="Queue",
)
CLASSES.asserts(
    "methods_as_values",
    "class A:\n    def __init__(self, n):\n        self.n = n\n    def add(self, x):\n        return self.n + x\n"
    "def f(g, x):\n    return g(x)\n",
    "add = A(2).add\nassert add(3) == 5",
    "assert f(A(1).add, 1) == 2",
    "assert list(map(A(1).add, [1, 2])) == [2, 3]",
    "assert sorted([A(2), A(1)], key=lambda a: a.n)[0].n == 1",
)

OPERATORS.asserts(
    "vector",
    """
    class Vec:
        def __init__(self, x, y):
            self.x, self.y = x, y
        def __add__(self, o):
            return Vec(self.x + o.x, self.y + o.y)
        def __mul__(self, k):
            return Vec(self.x * k, self.y * k)
        __rmul__ = __mul__
        def __neg__(self):
            return Vec(-self.x, -self.y)
        def __abs__(self):
            return (self.x ** 2 + self.y ** 2) ** 0.5
        def __eq__(self, o):
            return (self.x, self.y) == (o.x, o.y)
        def __iter__(self):
            return iter((self.x, self.y))
        def __bool__(self):
            return bool(self.x or self.y)
        def __str__(self):
            return f'<{self.x},{self.y}>'
    """,
    "assert tuple(Vec(1, 2) + Vec(3, 4)) == (4, 6)",
    "assert Vec(1, 2) + Vec(3, 4) == Vec(4, 6)",
    "assert tuple(Vec(1, 2) * 3) == (3, 6)",
    "assert tuple(3 * Vec(1, 2)) == (3, 6)",
    "assert abs(Vec(3, 4)) == 5.0 and str(-Vec(1, 0)) == '<-1,0>'",
    "assert not Vec(0, 0) and Vec(0, 1)",
    "assert f'{Vec(1, 2)}' == '<1,2>'",
    entry="Vec",
)
OPERATORS.asserts(
    "ordering",
    "import functools\n@functools.total_ordering\nclass W:\n    def __init__(self, n):\n        self.n = n\n"
    "    def __eq__(self, o):\n        return self.n == o.n\n    def __lt__(self, o):\n        return self.n < o.n\n",
    "assert W(1) < W(2) and W(2) >= W(1)",
    "assert max(W(1), W(3), W(2)).n == 3",
    "assert [w.n for w in sorted([W(2), W(1)])] == [1, 2]",
    entry="W",
)
OPERATORS.asserts(
    "container",
    "class Grid:\n    def __init__(self, n):\n        self.c = {}\n        self.n = n\n    def __getitem__(self, k):\n"
    "        return self.c.get(k, 0)\n    def __setitem__(self, k, v):\n        self.c[k] = v\n"
    "    def __delitem__(self, k):\n        del self.c[k]\n    def __contains__(self, k):\n        return k in self.c\n"
    "    def __len__(self):\n        return self.n\n",
    "g = Grid(3)\ng[1, 2] = 5\nassert g[1, 2] == 5 and g[0, 0] == 0",
    "g = Grid(2)\ng['a'] = 1\nassert 'a' in g and 'b' not in g and len(g) == 2",
    "g = Grid(2)\ng['a'] = 1\ndel g['a']\nassert 'a' not in g",
    "g = Grid(1)\ng[0] = 1\ng[0] += 4\nassert g[0] == 5",
    entry="Grid",
)
OPERATORS.asserts(
    "callable_and_index",
    "class Poly:\n    def __init__(self, *c):\n        self.c = c\n    def __call__(self, x):\n"
    "        return sum(c * x ** i for i, c in enumerate(self.c))\n    def __index__(self):\n"
    "        return len(self.c)\n",
    "p = Poly(1, 2, 3)\nassert p(2) == 17",
    "assert callable(Poly(1))",
    "assert [0, 1, 2, 3][Poly(1, 2)] == 2 and hex(Poly(1)) == '0x1'",
    entry="Poly",
)
OPERATORS.asserts(
    "in_place",
    "class Acc:\n    def __init__(self):\n        self.t = 0\n    def __iadd__(self, x):\n        self.t += x\n"
    "        return self\n    def __lshift__(self, x):\n        self.t += 10 * x\n        return self\n",
    "a = Acc()\na += 3\na += 4\nassert a.t == 7",
    "a = Acc()\na << 1 << 2\nassert a.t == 30",
    entry="Acc",
)
OPERATORS.asserts(
    "matrix",
    "class M:\n    def __init__(self, rows):\n        self.rows = rows\n    def __matmul__(self, o):\n"
    "        return M([[sum(a * b for a, b in zip(r, c)) for c in zip(*o.rows)] for r in self.rows])\n"
    "    def __eq__(self, o):\n        return self.rows == o.rows\n    def __pow__(self, n):\n        r = self\n"
    "        for _ in range(n - 1):\n            r = r @ self\n        return r\n",
    "assert (M([[1, 1], [1, 0]]) @ M([[1, 1], [1, 0]])).rows == [[2, 1], [1, 1]]",
    "assert (M([[1, 1], [1, 0]]) ** 5).rows == [[8, 5], [5, 3]]",
    "assert M([[1]]) == M([[1]])",
    entry="M",
)
OPERATORS.asserts(
    "money",
    "class Money:\n    def __init__(self, cents):\n        self.cents = cents\n    def __add__(self, o):\n"
    "        if isinstance(o, int):\n            return Money(self.cents + o)\n"
    "        return Money(self.cents + o.cents)\n"
    "    __radd__ = __add__\n    def __sub__(self, o):\n        return Money(self.cents - o.cents)\n"
    "    def __float__(self):\n        return self.cents / 100\n    def __int__(self):\n        return self.cents\n"
    "    def __round__(self, n=0):\n        return round(self.cents / 100, n)\n"
    "    def __format__(self, spec):\n        return f'${self.cents / 100:{spec or \".2f\"}}'\n",
    "assert (Money(150) + Money(50)).cents == 200",
    "assert sum([Money(1), Money(2)]).cents == 3",
    "assert float(Money(150)) == 1.5 and int(Money(150)) == 150",
    "assert f'{Money(150)}' == '$1.50'",
    "assert (Money(1) + 5).cents == 6",
    entry="Money",
)
