"""Values of standard library types, and of subclasses of builtin types."""

from tests.sandbox.honest.program_set import ProgramSet

STANDARD_TYPES = ProgramSet("standard_types")
SUBCLASSES = ProgramSet("subclasses")

STANDARD_TYPES.asserts(
    "namedtuple",
    "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef f(a, b):\n    return Point(a, b)\n",
    "assert f(1, 2) == (1, 2)",
    "assert f(1, 2).x == 1 and f(1, 2).y == 2",
    "assert f(1, 2) == Point(1, 2)",
    "assert f(1, 2)._replace(x=5) == (5, 2)",
    "x, y = f(3, 4)\nassert x + y == 7",
    "assert str(f(1, 2)) == 'Point(x=1, y=2)'",
)
STANDARD_TYPES.asserts(
    "typing_namedtuple",
    "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 0\n    def norm(self):\n"
    "        return abs(self.x) + abs(self.y)\ndef f(x):\n    return P(x)\n",
    "assert f(3) == P(3, 0)",
    "assert f(-3).norm() == 3",
)
STANDARD_TYPES.asserts(
    "counter",
    "from collections import Counter\ndef f(s):\n    return Counter(s)\n",
    "assert f('aab') == {'a': 2, 'b': 1}",
    "assert f('aab')['z'] == 0",
    "assert f('aab').most_common(1) == [('a', 2)]",
    "from collections import Counter\nassert f('ab') + Counter('b') == Counter('abb')",
    "from collections import Counter\nassert isinstance(f('ab'), Counter)",
)
STANDARD_TYPES.asserts(
    "defaultdict",
    "from collections import defaultdict\ndef f(words):\n    d = defaultdict(list)\n    for w in words:\n"
    "        d[len(w)].append(w)\n    return d\n",
    "assert f(['a', 'b', 'cc']) == {1: ['a', 'b'], 2: ['cc']}",
    "assert f(['a'])[1] == ['a']",
    "assert f(['a'])[7] == []",
    "assert dict(f([])) == {}",
)
STANDARD_TYPES.asserts(
    "ordered_dict",
    "from collections import OrderedDict\ndef f(pairs):\n    return OrderedDict(pairs)\n",
    "assert f([('b', 1), ('a', 2)]) == {'a': 2, 'b': 1}",
    "assert list(f([('b', 1), ('a', 2)])) == ['b', 'a']",
    "from collections import OrderedDict\nassert f([('b', 1), ('a', 2)]) != OrderedDict([('a', 2), ('b', 1)])",
    "d = f([('b', 1), ('a', 2)])\nd.move_to_end('b')\nassert list(d) == ['a', 'b']",
)
STANDARD_TYPES.asserts(
    "deque",
    "from collections import deque\ndef f(xs, n=None):\n    return deque(xs, n)\n",
    "from collections import deque\nassert f([1, 2]) == deque([1, 2])",
    "assert f([1, 2, 3], 2).maxlen == 2",
    "d = f([1, 2, 3])\nassert d.popleft() == 1 and len(d) == 2",
)
STANDARD_TYPES.asserts(
    "chain_map",
    "from collections import ChainMap\ndef f(a, b):\n    return ChainMap(a, b)\n",
    "assert f({'x': 1}, {'x': 2, 'y': 3})['x'] == 1",
    "assert dict(f({'x': 1}, {'x': 2, 'y': 3})) == {'x': 1, 'y': 3}",
)
STANDARD_TYPES.asserts(
    "enum",
    "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    GREEN = 2\ndef f(n):\n    return Color(n)\n",
    "assert f(1) == Color.RED",
    "assert f(1) != Color.GREEN",
    "assert f(2).name == 'GREEN' and f(2).value == 2",
    "assert f(1) is Color.RED",
    "assert [c.name for c in Color] == ['RED', 'GREEN']",
    "assert f(1) in {Color.RED, Color.GREEN}",
)
STANDARD_TYPES.asserts(
    "int_enum",
    "from enum import IntEnum, Flag, auto\nclass Level(IntEnum):\n    LOW = 1\n    HIGH = 2\n"
    "class P(Flag):\n    R = auto()\n    W = auto()\ndef f():\n    return Level.HIGH\ndef g():\n    return P.R | P.W\n",
    "assert f() == 2 and f() > 1",
    "assert f().name == 'HIGH'",
    "assert g() == P.R | P.W",
)
STANDARD_TYPES.asserts(
    "dataclass",
    "from dataclasses import dataclass, field\n@dataclass\nclass Item:\n    name: str\n    price: float = 0.0\n"
    "    tags: list = field(default_factory=list)\ndef f(name):\n    return Item(name)\n",
    "assert f('a') == Item('a')",
    "assert f('a') != Item('b')",
    "assert f('a').tags == [] and f('a').price == 0.0",
    "assert repr(f('a')) == \"Item(name='a', price=0.0, tags=[])\"",
    "import dataclasses\nassert dataclasses.asdict(f('a')) == {'name': 'a', 'price': 0.0, 'tags': []}",
)
STANDARD_TYPES.asserts(
    "frozen_ordered_dataclass",
    "from dataclasses import dataclass\n@dataclass(frozen=True, order=True)\nclass V:\n    major: int\n    minor: int\n"
    "def f(s):\n    return V(*map(int, s.split('.')))\n",
    "assert f('1.2') < f('1.10')",
    "assert max([f('1.2'), f('1.10')]) == V(1, 10)",
    "assert len({f('1.2'), f('1.2')}) == 1",
    "assert sorted([f('2.0'), f('1.5')]) == [V(1, 5), V(2, 0)]",
)
STANDARD_TYPES.asserts(
    "simple_namespace",
    "from types import SimpleNamespace\ndef f(**k):\n    return SimpleNamespace(**k)\n",
    "assert f(a=1).a == 1",
    "from types import SimpleNamespace\nassert f(a=1) == SimpleNamespace(a=1)",
)
STANDARD_TYPES.asserts(
    "regex_match",
    r"""
    import re
    def f(s):
        return re.match(r'(\w+)-(\d+)', s)
    def all_of(s):
        return re.finditer(r'\d', s)
    """,
    "assert f('ab-12').group(1) == 'ab' and f('ab-12').groups() == ('ab', '12')",
    "assert f('nothing') is None",
    "assert f('ab-12')",
    "assert not f('-')",
    "assert [m.group() for m in all_of('a1b2')] == ['1', '2']",
    "assert f('ab-12')[2] == '12'",
)
STANDARD_TYPES.asserts(
    "array_and_views",
    "import array\ndef f(xs):\n    return array.array('i', xs)\ndef keys(d):\n    return d.keys()\n"
    "def view(b):\n    return memoryview(b)\n",
    "assert list(f([1, 2])) == [1, 2]",
    "assert keys({'a': 1}) == {'a'}",
    "assert sorted(keys({'b': 1, 'a': 2})) == ['a', 'b']",
    "assert bytes(view(b'abc')[1:]) == b'bc'",
)
STANDARD_TYPES.asserts(
    "dict_views",
    "def f(d):\n    return d.items()\ndef v(d):\n    return d.values()\n",
    "assert list(f({'a': 1})) == [('a', 1)]",
    "assert list(v({'a': 1, 'b': 2})) == [1, 2]",
    "assert len(v({'a': 1})) == 1 and 1 in v({'a': 1})",
)
STANDARD_TYPES.asserts(
    "paths_and_uuids",
    "import pathlib, uuid\ndef f(p):\n    return pathlib.PurePosixPath(p)\ndef u(s):\n    return uuid.UUID(s)\n",
    "assert f('/a/b.txt').suffix == '.txt'",
    "from pathlib import PurePosixPath\nassert f('/a') / 'b' == PurePosixPath('/a/b')",
    "assert str(u('12345678123456781234567812345678')) == '12345678-1234-5678-1234-567812345678'",
)
STANDARD_TYPES.asserts(
    "mapping_proxy",
    "import types\ndef f(d):\n    return types.MappingProxyType(d)\n",
    "assert f({'a': 1})['a'] == 1",
    "assert f({'a': 1}) == {'a': 1}",
)

SUBCLASSES.asserts(
    "of_str",
    "class Name(str):\n    def shout(self):\n        return self.upper() + '!'\ndef f(s):\n    return Name(s)\n",
    "assert f('a') == 'a'",
    "assert f('a').shout() == 'A!'",
    "assert isinstance(f('a'), str)",
    "assert type(f('a')) is not str",
)
SUBCLASSES.asserts(
    "of_int",
    "class Mod7(int):\n    def __add__(self, other):\n        return Mod7((int(self) + int(other)) % 7)\n"
    "def f(n):\n    return Mod7(n % 7)\n",
    "assert f(9) == 2",
    "assert f(5) + f(4) == 2",
    "assert f(3) + 6 == 2",
)
SUBCLASSES.asserts(
    "of_list",
    "class Stack(list):\n    def push(self, x):\n        self.append(x)\n    def peek(self):\n        return self[-1]\n"
    "def f(*xs):\n    return Stack(xs)\n",
    "assert f(1, 2) == [1, 2]",
    "s = f()\ns.push(3)\nassert s.peek() == 3 and len(s) == 1",
    "s = Stack()\ns.push(1)\nassert s == [1]",
)
SUBCLASSES.asserts(
    "of_dict",
    "class Attr(dict):\n    def __getattr__(self, name):\n        return self[name]\n"
    "    def __missing__(self, key):\n        return key * 2\ndef f(**k):\n    return Attr(k)\n",
    "assert f(a=1) == {'a': 1}",
    "assert f(a=1).a == 1",
    "assert f()['x'] == 'xx'",
)
SUBCLASSES.asserts(
    "of_dict_ignoring_case",
    "class Headers(dict):\n    def __getitem__(self, k):\n        return super().__getitem__(k.lower())\n"
    "def f():\n    return Headers({'a': 1})\n",
    "assert f()['A'] == 1",
    "h = Headers({'b': 2})\nassert h['B'] == 2",
)
SUBCLASSES.asserts(
    "of_float_and_tuple",
    "class Meters(float):\n    unit = 'm'\nclass Pair(tuple):\n    @property\n    def first(self):\n"
    "        return self[0]\n"
    "def f(x):\n    return Meters(x)\ndef g(*x):\n    return Pair(x)\n",
    "assert f(1.5) == 1.5 and f(1.5).unit == 'm'",
    "assert g(1, 2) == (1, 2) and g(1, 2).first == 1",
)
SUBCLASSES.asserts(
    "of_set",
    "class Bag(set):\n    def twice(self):\n        return {2 * x for x in self}\ndef f(xs):\n    return Bag(xs)\n",
    "assert f([1, 1, 2]) == {1, 2}",
    "assert f([1]).twice() == {2}",
)
SUBCLASSES.asserts(
    "user_dict",
    "from collections import UserDict, UserList\nclass Upper(UserDict):\n    def __setitem__(self, k, v):\n"
    "        super().__setitem__(k.upper(), v)\ndef f(**k):\n    return Upper(k)\n",
    "assert f(a=1)['A'] == 1",
    "assert f(a=1) == {'A': 1}",
    "assert len(f(a=1, b=2)) == 2",
)
SUBCLASSES.asserts(
    "bool_is_int",
    "def f(x):\n    return x > 1\n",
    "assert f(2) == 1",
    "assert f(2) is True",
    "assert sum(map(f, [1, 2, 3])) == 2",
)
