"""Exceptions: types, arguments, messages and causes."""

from tests.sandbox.honest.program_set import ProgramSet

ERRORS = ProgramSet("errors")

ERRORS.asserts(
    "builtin_types",
    "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return 10 // x\n",
    "try:\n    f(-1)\n    raised = False\nexcept ValueError:\n    raised = True\nassert raised",
    "try:\n    f(-1)\nexcept ValueError as e:\n    text = str(e)\nassert text == 'negative'",
    "try:\n    f(0)\nexcept ArithmeticError as e:\n    kind = type(e).__name__\nassert kind == 'ZeroDivisionError'",
    "assert f(0) == 1",
    "assert f('x') == 1",
)
ERRORS.asserts(
    "args",
    "def f(x):\n    raise ValueError('bad', x, [1, 2])\n",
    "try:\n    f(3)\nexcept ValueError as e:\n    args = e.args\nassert args == ('bad', 3, [1, 2])",
    "try:\n    f(3)\nexcept ValueError as e:\n    text = str(e)\nassert text == \"('bad', 3, [1, 2])\"",
)
ERRORS.asserts(
    "key_error",
    "def f(k):\n    return {'a': 1}[k]\n",
    "try:\n    f('z')\nexcept KeyError as e:\n    text, key = str(e), e.args[0]\nassert text == \"'z'\" and key == 'z'",
    "try:\n    f((1, 2))\nexcept LookupError as e:\n    key = e.args[0]\nassert key == (1, 2)",
)
ERRORS.asserts(
    "own_class",
    "class TooShort(ValueError):\n    def __init__(self, n):\n        super().__init__(f'only {n}')\n"
    "        self.n = n\n"
    "def f(s):\n    if len(s) < 3:\n        raise TooShort(len(s))\n    return s\n",
    "try:\n    f('a')\nexcept ValueError as e:\n    text = str(e)\nassert text == 'only 1'",
    "try:\n    f('a')\nexcept ValueError as e:\n    name = type(e).__name__\nassert name == 'TooShort'",
    "try:\n    f('ab')\nexcept ValueError as e:\n    n = e.n\nassert n == 2",
    "try:\n    f('ab')\n    ok = False\nexcept TooShort:\n    ok = True\nassert ok",
    "assert f('a') == 'a'",
)
ERRORS.asserts(
    "own_class_of_exception",
    "class Problem(Exception):\n    pass\ndef f():\n    raise Problem('p')\n",
    "try:\n    f()\n    ok = False\nexcept Exception as e:\n    ok = str(e) == 'p'\nassert ok",
    "try:\n    f()\nexcept Exception as e:\n    name = e.__class__.__name__\nassert name == 'Problem'",
    "f()\nassert True is not False",
)
ERRORS.asserts(
    "index_and_attribute",
    "def f(x):\n    return [1, 2][x]\ndef g():\n    return None.real_name\n",
    "try:\n    f(5)\nexcept IndexError as e:\n    text = str(e)\nassert text == 'list index out of range'",
    "try:\n    g()\nexcept AttributeError as e:\n    name = e.name\nassert name == 'real_name'",
    "assert f(9) == 1",
)
ERRORS.asserts(
    "operating_system",
    "def f(p):\n    return open(p).read()\n",
    "try:\n    f('/nowhere/at/all')\nexcept OSError as e:\n    number = e.errno\nassert number == 2",
    "try:\n    f('/nowhere/at/all')\n    ok = False\nexcept FileNotFoundError:\n    ok = True\nassert ok",
)
ERRORS.asserts(
    "unicode",
    "def f(b):\n    return b.decode('ascii')\n",
    "try:\n    f(b'\\xff')\n    ok = False\nexcept UnicodeDecodeError as e:\n    ok = e.start == 0\nassert ok",
    "try:\n    f(b'\\xff')\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok",
)
ERRORS.asserts(
    "cause",
    "def f(x):\n    try:\n        return int(x)\n    except ValueError as e:\n"
    "        raise TypeError('not a number') from e\n",
    "try:\n    f('a')\nexcept TypeError as e:\n    cause = type(e.__cause__)\nassert cause is ValueError",
    "try:\n    f('a')\n    ok = False\nexcept TypeError:\n    ok = True\nassert ok",
)
ERRORS.asserts(
    "stop_iteration",
    "def f(it):\n    return next(iter(it))\n",
    "try:\n    f([])\n    ok = False\nexcept StopIteration:\n    ok = True\nassert ok",
    "assert f([1]) == 1",
)
ERRORS.asserts(
    "assertion_of_the_program",
    "def f(x):\n    assert x > 0, 'must be positive'\n    return x\n",
    "try:\n    f(-1)\n    ok = False\nexcept AssertionError as e:\n    ok = str(e) == 'must be positive'\nassert ok",
    "assert f(-1) == -1",
    "assert f(1) == 1",
)
ERRORS.asserts(
    "exit_in_a_function",
    "import sys\ndef f(x):\n    if x:\n        sys.exit(3)\n    return 0\n",
    "try:\n    f(1)\n    ok = False\nexcept SystemExit as e:\n    ok = e.code == 3\nassert ok",
    "assert f(0) == 0",
    "assert f(1) == 0",
)
ERRORS.asserts(
    "recursion",
    "def f(n):\n    return f(n + 1)\ndef g(n):\n    return 0 if n == 0 else 1 + g(n - 1)\n",
    "try:\n    f(0)\n    ok = False\nexcept RecursionError:\n    ok = True\nassert ok",
    "assert g(800) == 800",
    "assert f(0) == 1",
)
ERRORS.asserts(
    "returned_not_raised",
    "def f(x):\n    return ValueError(x)\n",
    "assert isinstance(f('a'), ValueError)",
    "assert str(f('a')) == 'a' and f('a').args == ('a',)",
)
ERRORS.asserts(
    "groups",
    "def f():\n    raise ExceptionGroup('several', [ValueError(1), TypeError(2)])\n",
    "try:\n    f()\n    n = 0\nexcept* ValueError as g:\n    n = len(g.exceptions)\nexcept* TypeError:\n"
    "    pass\nassert n == 1",
    "try:\n    f()\nexcept Exception as e:\n    n = len(e.exceptions)\nassert n == 2",
)
ERRORS.asserts(
    "at_import",
    "def f(x):\n    return x\nraise RuntimeError('while loading')\n",
    "assert f(1) == 1",
    "assert f(2) == 2",
)
ERRORS.check(
    "check_catches",
    "def f(x):\n    if not isinstance(x, int):\n        raise TypeError(f'{x!r} is no int')\n    return x + 1\n",
    """
    assert candidate(1) == 2
    try:
        candidate('a')
        assert False, 'no error'
    except TypeError as error:
        assert str(error) == "'a' is no int"
    """,
)
