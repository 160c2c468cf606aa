"""Plain values: numbers, texts, bytes, sets and dates; large and deep values."""

from tests.sandbox.honest.program_set import ProgramSet

NUMBERS = ProgramSet("numbers")
VALUES = ProgramSet("values")
SIZES = ProgramSet("sizes")

NUMBERS.asserts(
    "nan",
    "import math\ndef f():\n    return float('nan')\ndef g():\n    return [math.nan, 1.0]\ndef h(x):\n    return x\n",
    "assert f() != f()",
    "import math\nassert math.isnan(f())",
    "import math\nassert g() == [math.nan, 1.0]",
    "x = float('nan')\nassert h([x]) == [x]",
    "assert f() == f()",
)
NUMBERS.asserts(
    "infinity_and_zero",
    "import math\ndef f(s):\n    return s * math.inf\ndef z():\n    return -0.0\n",
    "assert f(1) == float('inf') and f(-1) == float('-inf')",
    "import math\nassert math.copysign(1, z()) == -1.0",
)
NUMBERS.asserts(
    "floats",
    "def f(x):\n    return x / 3\n",
    "assert f(1) == 1 / 3",
    "assert abs(f(2) - 0.6667) < 1e-3",
    "assert f(1e308) == 1e308 / 3 and f(5e-324) == 0.0",
    "assert round(f(10), 2) == 3.33",
)
NUMBERS.asserts(
    "big_integers",
    "import math\ndef f(n):\n    return math.factorial(n)\n",
    "assert f(30) == 265252859812191058636308480000000",
    "assert f(25) % 10 ** 6 == 0",
    "assert len(str(f(500))) == 1135",
    "assert f(2000) // f(1999) == 2000",
)
NUMBERS.asserts(
    "huge_integer",
    "def f(n):\n    return 2 ** n\n",
    "assert f(100000).bit_length() == 100001",
    "assert f(20000) == 1 << 20000",
    "assert -f(64) == -18446744073709551616",
)
NUMBERS.asserts(
    "complex",
    "import cmath\ndef f(a, b, c):\n    d = cmath.sqrt(b * b - 4 * a * c)\n    return (-b + d) / (2 * a)\n",
    "assert f(1, 0, 1) == 1j",
    "assert f(1, 2, 5) == complex(-1, 2)",
    "assert abs(f(1, 2, 5)) == abs(-1 + 2j)",
    "assert f(1, 2, 5).imag == 2.0",
)
NUMBERS.asserts(
    "decimal",
    "from decimal import Decimal\ndef f(a, b):\n    return Decimal(a) + Decimal(b)\n",
    "from decimal import Decimal\nassert f('0.1', '0.2') == Decimal('0.3')",
    "assert str(f('1.10', '2.20')) == '3.30'",
    "from decimal import Decimal\nassert f('1', '0').quantize(Decimal('0.01')) == Decimal('1.00')",
)
NUMBERS.asserts(
    "fractions",
    "from fractions import Fraction\ndef f(a, b):\n    return Fraction(a, b)\n",
    "from fractions import Fraction\nassert f(2, 4) == Fraction(1, 2)",
    "assert f(1, 2) == 0.5",
    "assert f(3, 4).numerator == 3 and float(f(3, 4)) == 0.75",
    "assert str(f(1, 3) + f(1, 6)) == '1/2'",
)
NUMBERS.asserts(
    "types_of_numbers",
    "def f(x):\n    return x * 2\n",
    "assert type(f(1)) is int and type(f(1.0)) is float",
    "assert f(True) == 2 and type(f(True)) is int",
    "assert isinstance(f(1.5), float)",
)

VALUES.asserts(
    "bytes",
    "def f(s):\n    return s.encode('utf-8')\ndef g(b):\n    return bytearray(b)\n",
    "assert f('é') == b'\\xc3\\xa9'",
    "assert g(b'ab') == b'ab'",
    "assert f('abc')[0] == 97 and f('abc').hex() == '616263'",
    "assert type(g(b'')) is bytearray",
)
VALUES.asserts(
    "text",
    "def f(s):\n    return s[::-1]\n",
    "assert f('añb') == 'bña'",
    "assert f('\\ud800x') == 'x\\ud800'",
    "assert f('\\x00\\n\\t') == '\\t\\n\\x00'",
    "assert f('') == ''",
)
VALUES.asserts(
    "sets",
    "def f(a, b):\n    return set(a) & set(b)\ndef g(xs):\n    return frozenset(xs)\n",
    "assert f([1, 2, 3], [2, 3, 4]) == {2, 3}",
    "assert g('aab') == frozenset('ab')",
    "assert {g('ab'), g('ba')} == {g('ab')}",
    "assert sorted(f('abc', 'bcd')) == ['b', 'c']",
)
VALUES.asserts(
    "order_of_a_set_of_ints",
    "def f(xs):\n    return list(set(xs))\n",
    "assert f([3, 1, 2]) == [1, 2, 3]",
    "assert f([]) == []",
    "assert f([9, 1, 8]) == list({9, 1, 8})",
)
VALUES.asserts(
    "dicts",
    "def f(xs):\n    return {x: i for i, x in enumerate(xs)}\n",
    "assert f('ab') == {'a': 0, 'b': 1}",
    "assert list(f('ba')) == ['b', 'a']",
    "assert f([(1, 2), None, 3.5]) == {(1, 2): 0, None: 1, 3.5: 2}",
    "assert f([1, True, 1.0]) == {1: 2}",
)
VALUES.asserts(
    "nothing_and_ellipsis",
    "def f(x):\n    return x\n",
    "assert f(None) is None",
    "assert f(...) is ...",
    "assert f(NotImplemented) is NotImplemented",
    "assert f(()) == ()",
)
VALUES.asserts(
    "slices_and_ranges",
    "def f(n):\n    return range(0, n, 2)\ndef s(a, b):\n    return slice(a, b)\n",
    "assert f(5) == range(0, 5, 2)",
    "assert list(f(5)) == [0, 2, 4] and 4 in f(5)",
    "assert f(10 ** 9)[-1] == 999999998",
    "assert [1, 2, 3][s(1, 3)] == [2, 3]",
    "assert s(1, 2) == slice(1, 2)",
)
VALUES.asserts(
    "dates",
    "import datetime\ndef f(s):\n    return datetime.date.fromisoformat(s)\n"
    "def d(a, b):\n    return f(b) - f(a)\ndef t():\n"
    "    return datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)\n",
    "import datetime\nassert f('2024-02-29') == datetime.date(2024, 2, 29)",
    "assert d('2024-02-28', '2024-03-01').days == 2",
    "assert f('2024-01-01').strftime('%A') == 'Monday'",
    "assert t().isoformat() == '2024-01-02T03:04:00+00:00'",
    "import datetime\nassert t() - datetime.timedelta(hours=1) < t()",
)
VALUES.asserts(
    "time_zones",
    "import datetime, zoneinfo\ndef f():\n"
    "    return datetime.datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo('UTC'))\n",
    "assert f().hour == 12",
    "assert f().utcoffset().total_seconds() == 0",
)
VALUES.asserts(
    "types_as_values",
    "def f(x):\n    return type(x)\ndef g():\n    return ValueError\n",
    "assert f(1) is int",
    "assert f([]) == list",
    "assert f('').__name__ == 'str'",
    "assert g() is ValueError",
    "assert {f(1): 'i'}[int] == 'i'",
)
VALUES.asserts(
    "functions_as_values",
    "import operator\ndef f(name):\n    return {'+': operator.add, 'len': len, 'up': str.upper}[name]\n",
    "assert f('+')(1, 2) == 3",
    "assert f('len') is len",
    "assert list(map(f('up'), 'ab')) == ['A', 'B']",
)
VALUES.asserts(
    "identity",
    "def f(xs):\n    return xs[0]\ndef same(a, b):\n    return a is b\ndef copied(a):\n    return list(a)\n",
    "a = [1]\nassert f([a]) is a",
    "a = [1]\nassert same(a, a)",
    "a = [1]\nassert copied(a) is not a and copied(a) == a",
    "assert not same([1], [1])",
)
VALUES.asserts(
    "shared_parts",
    "def f():\n    row = [0, 0]\n    return [row, row]\n",
    "m = f()\nm[0][0] = 1\nassert m == [[1, 0], [1, 0]]",
    "m = f()\nassert m[0] is m[1]",
)
VALUES.asserts(
    "cyclic_result",
    "def f():\n    a = [1]\n    a.append(a)\n    return a\n",
    "a = f()\nassert a[0] == 1 and a[1] is a",
    "assert len(f()) == 2",
)

SIZES.asserts(
    "long_list",
    "def f(n):\n    return list(range(n))\n",
    "assert f(300000)[-1] == 299999",
    "assert len(f(1000)) == 1000",
    "assert sum(f(200000)) == 19999900000",
)
SIZES.asserts(
    "long_text",
    "def f(n):\n    return 'ab' * n\n",
    "assert len(f(1500000)) == 3000000",
    "assert f(2) == 'abab'",
)
SIZES.asserts(
    "sieve",
    "def f(n):\n    mark = [True] * (n + 1)\n    mark[0] = mark[1] = False\n    for i in range(2, int(n ** 0.5) + 1):\n"
    "        if mark[i]:\n            mark[i * i::i] = [False] * len(mark[i * i::i])\n"
    "    return [i for i, m in enumerate(mark) if m]\n",
    "assert len(f(2000000)) == 148933",
    "assert f(10) == [2, 3, 5, 7]",
)
SIZES.asserts(
    "long_argument",
    "def f(xs):\n    return max(xs)\n",
    "assert f(list(range(400000))) == 399999",
    "assert f('x' * 2000000) == 'x'",
)
SIZES.asserts(
    "matrix",
    "def f(n):\n    return [[i * n + j for j in range(n)] for i in range(n)]\n",
    "m = f(500)\nassert m[499][499] == 249999 and len(m) == 500",
)
SIZES.asserts(
    "deep",
    "def f(n):\n    out = []\n    for _ in range(n):\n        out = [out]\n    return out\n",
    "assert f(3) == [[[[]]]]",
    "x = f(50)\nfor _ in range(50):\n    x = x[0]\nassert x == []",
    "x, n = f(100), 0\nwhile x:\n    x, n = x[0], n + 1\nassert n == 100",
    "x, n = f(300), 0\nwhile x:\n    x, n = x[0], n + 1\nassert n == 300",
)
SIZES.asserts(
    "deep_dict",
    "def f(n):\n    return {'next': f(n - 1)} if n else None\n",
    "d, n = f(120), 0\nwhile d:\n    d, n = d['next'], n + 1\nassert n == 120",
)
SIZES.asserts(
    "deep_argument",
    "def f(x):\n    n = 0\n    while x:\n        x, n = x[0], n + 1\n    return n\n",
    "x = []\nfor _ in range(200):\n    x = [x]\nassert f(x) == 200",
    "assert f([[[]]]) == 2",
)
SIZES.asserts(
    "much_memory",
    "def f(n):\n    return sum(bytearray(n))\n",
    "assert f(100 << 20) == 0",
)
