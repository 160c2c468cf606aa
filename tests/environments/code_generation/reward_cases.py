"""Joint actions with rewards and feedback computed by hand, from these levels of the paper's environment:

    A     0.4   the helper is defined and returns a value (of two helpers each 0.2)
    M     0.6   the entry point is defined and returns a value; without it nothing below counts
    S     0.5   the joint program compiles; if not, nothing below counts
    k/4         the share of tests passed
    C     0.5   main calls a helper that exists, and a test passed
    W     1.0   and main is no thin wrapper around it
    X    -0.5   but main discards a result

The task is `f`, twice x and one more, with four tests: f(0) is 1, f(1) is 3, f(2) is 5, f(10) is 21.
"""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.core.episode import Task

TASK = Task(
    "hand/1",
    'def f(x: int) -> int:\n    """Twice x, and one more."""\n',
    {"entry_point": "f", "tests": ("assert f(0) == 1", "assert f(1) == 3", "assert f(2) == 5", "assert f(10) == 21")},
)


@dataclass(frozen=True)
class RewardCase:
    """Joint actions, one text per agent, with the same reward and similar feedback."""

    levels: str
    reward: float
    feedback: tuple[str, ...]
    """Prefixes of the first lines of main's level_feedback."""
    brief: str
    """The first line of level_passed."""
    solved: bool
    """Whether `passed` reports that all levels passed."""
    answers: tuple[tuple[str, ...], ...]


AUX = "def aux(x):\n    return 2 * x"
WHOLE = "def aux(x):\n    return 2 * x + 1"
MAIN = "def f(x):\n    return aux(x) + 1"
ALONE = "def f(x):\n    return 2 * x + 1"
ONE, TWO = "def aux_1(x):\n    return 2 * x", "def aux_2(x):\n    return x + 1"
OK = ("aux: found", "f: found", "syntax: OK")


def body(*lines: str) -> str:
    """Return the function `f` with these lines."""
    return "def f(x):\n" + "\n".join(f"    {line}" for line in lines)


def helper(*lines: str) -> str:
    """Return the function `aux` with these lines."""
    return body(*lines).replace("def f", "def aux", 1)


SOLVED_TOGETHER = RewardCase(
    "A M S 4/4 C W",
    4.0,
    (*OK, "tests: 4 of 4 passed", "aux use: OK"),
    "implementation: OK",
    True,
    (
        (AUX, MAIN),
        (f"```python\n{AUX}\n```", f"```python\n{MAIN}\n```"),
        (f"```\n{AUX}\n```", f"Here is the function:\n\n```python\n{MAIN}\n```\n\nIt calls the helper."),
        (f"Sure! {AUX.splitlines()[0]}\n    return 2 * x".removeprefix("Sure! "), f"{MAIN}\n\nprint(f(3))"),
        (f"{AUX}\n\nThis doubles x.", f"{MAIN}\n\nThis adds one."),
        (AUX.replace("\n", "\r\n"), MAIN.replace("\n", "\r\n")),
        ("def aux(x: int) -> int:\n    return x + x", "def f(x: int) -> int:\n    return 1 + aux(x)"),
        (helper('"""Doubles."""', "return x * 2"), body('"""Twice x, and one more."""', "return aux(x) + 1")),
        (helper("total = 0", "for _ in range(2):", "    total += x", "return total"), MAIN),
        (helper("if x == 0:", "    return 0", "return 2 + aux(x - 1)"), MAIN),
        (helper("def twice(y):", "    return y + y", "return twice(x)"), MAIN),
        ("def aux(*values):\n    return sum(values) * 2", MAIN),
        ("def aux(x, factor=2):\n    return factor * x", body("return aux(x, factor=2) + 1")),
        ("from operator import mul\n\ndef aux(x):\n    return mul(2, x)", MAIN),
        ("import math\n\ndef aux(x):\n    return math.prod([2, x])", MAIN),
        (AUX, body("y = aux(x)", "return y + 1")),
        (AUX, body("y = aux(x)", "y += 1", "return y")),
        (AUX, body("return sum([aux(x), 1])")),
        (AUX, body("return max(aux(x), -1) + 1")),
        (AUX, body("return [aux(v) for v in [x]][0] + 1")),
        (AUX, body("return list(map(aux, [x]))[0] + 1")),
        (AUX, body("g = aux", "return g(x) + 1")),
        (AUX, body("def inner(y):", "    return aux(y) + 1", "return inner(x)")),
        (AUX, body("if x == 0:", "    return 1", "return aux(x) + 1")),
        (AUX, body("try:", "    return aux(x) + 1", "except TypeError:", "    return 0")),
        (AUX, body("total = 1", "for part in (aux(x),):", "    total += part", "return total")),
        (AUX, f"def aux(x):\n    return 0\n\n{MAIN}"),
        (f"{AUX}\n\n\ndef f(x):\n    return 0", MAIN),
    ),
)

THIN = RewardCase(
    "A M S 4/4 C",
    3.0,
    (*OK, "tests: 4 of 4 passed", "aux use: thin wrapper"),
    "implementation: OK",
    True,
    (
        (WHOLE, body("return aux(x)")),
        (WHOLE, body("y = aux(x)", "return y")),
        (WHOLE, body('"""Twice x, and one more."""', "return aux(x)")),
        (WHOLE, body("# the helper does it", "result = aux(x)", "return result")),
        (WHOLE, f"```python\n{body('return aux(x)')}\n```"),
        (WHOLE, body("return (aux(x))")),
        (WHOLE, "def f(x: int) -> int:\n    result: int = aux(x)\n    return result"),
        (WHOLE, "def f(*args):\n    return aux(*args)"),
    ),
)

THROWN_AWAY = RewardCase(
    "A M S 4/4 C W X",
    3.5,
    (*OK, "tests: 4 of 4 passed", "aux use: result thrown away"),
    "implementation: OK",
    True,
    (
        (AUX, body("aux(x)", "return 2 * x + 1")),
        (AUX, body("y = aux(x)", "return 2 * x + 1")),
        (AUX, body("_ = aux(x)", "return 2 * x + 1")),
        (AUX, body("y = aux(x)", "y = 2 * x", "return y + 1")),
        (AUX, body("if x > 0:", "    aux(x)", "return 2 * x + 1")),
        (AUX, body("for n in range(2):", "    aux(n)", "return 2 * x + 1")),
        (WHOLE, body("aux(x)", "return x + x + 1")),
        ("def aux():\n    return 7", body("aux()", "return 2 * x + 1")),
    ),
)

NOT_CALLED = RewardCase(
    "A M S 4/4",
    2.5,
    (*OK, "tests: 4 of 4 passed", "aux use: aux not called"),
    "implementation: OK",
    True,
    (
        (AUX, ALONE),
        (AUX, body("# aux(x)", "return 2 * x + 1")),
        (AUX, body('"""Could be aux(x) + 1."""', "return 2 * x + 1")),
        (AUX, body('word = "aux(x)"', "return 2 * x + 1")),
        (AUX, "def f(x, aux=None):\n    return 2 * x + 1"),
        (AUX, body("auxiliary = 2 * x", "return auxiliary + 1")),
        (AUX, f"{ALONE}\n\nprint(aux(3))"),
    ),
)

NO_HELPER = RewardCase(
    "M S 4/4",
    2.1,
    ("aux: missing", "f: found", "syntax: OK", "tests: 4 of 4 passed", "aux use: aux not called"),
    "implementation: missing aux",
    True,
    (
        ("", ALONE),
        ("I cannot help with that.", ALONE),
        ("def helper(x):\n    return 2 * x", ALONE),
        ("def aux2(x):\n    return 2 * x", ALONE),
        ("class aux:\n    pass", ALONE),
        ("print('aux')", ALONE),
        ("```python\n```", ALONE),
        ("def au", ALONE),
    ),
)

HELPER_CALLED_IN_VAIN = RewardCase(
    "M S 0/4",
    1.1,
    ("aux: missing", "f: found", "syntax: OK", "tests: 0 of 4 passed", "failed: assert f(0) == 1 -> NameError"),
    "implementation: missing aux",
    False,
    (
        ("", MAIN),
        ("def helper(x):\n    return 2 * x", MAIN),
        ("The helper doubles x.", body("y = aux(x)", "return y + 1")),
    ),
)

BROKEN_HELPER = RewardCase(
    "M",
    0.6,
    ("aux: missing", "f: found", "syntax: error in aux line", "tests: not run"),
    "implementation: missing aux",
    False,
    (("def aux(x:\n    return 2 * x", ALONE), ("def aux(x:\n    return 2 * x", MAIN)),
)

HELPER_WITHOUT_VALUE = RewardCase(
    "M S 4/4 C W X",
    3.1,
    ("aux: missing", "f: found", "syntax: OK", "tests: 4 of 4 passed", "aux use: result thrown away"),
    "implementation: missing aux",
    True,
    (
        ("def aux(x):\n    print(x)", body("aux(x)", "return 2 * x + 1")),
        ("def aux(x):\n    x += 1\n    return", body("aux(x)", "return 2 * x + 1")),
        ("def aux(x):\n    pass", body("y = aux(x)", "return 2 * x + 1")),
    ),
)

NO_MAIN = RewardCase(
    "A",
    0.4,
    ("aux: found", "f: missing"),
    "implementation: missing f",
    False,
    (
        (AUX, ""),
        (AUX, "The function adds one to the helper's result."),
        (AUX, "def g(x):\n    return aux(x) + 1"),
        (AUX, "def f(x)\n    return aux(x) + 1"),
        (AUX, "def f(x):"),
        (AUX, body("print(aux(x) + 1)")),
        (AUX, body("pass")),
        (AUX, "class Solution:\n    def g(self, x):\n        return aux(x) + 1"),
        (AUX, "assert f(0) == 1"),
    ),
)

NOTHING = RewardCase(
    "",
    0.0,
    ("aux: missing", "f: missing"),
    "implementation: missing aux, f",
    False,
    (
        ("", ""),
        ("No.", "No."),
        ("def helper(x):\n    return x", "def g(x):\n    return x"),
        ("```python\n", "```python\n"),
        (ALONE, AUX),
    ),
)

MAIN_DOES_NOT_COMPILE = RewardCase(
    "A M",
    1.0,
    ("aux: found", "f: found", "syntax: error in f line", "tests: not run"),
    "implementation: OK",
    False,
    (
        (AUX, body("break", "return aux(x) + 1")),
        (AUX, body("return aux(x) + 1", "continue")),
        (AUX, "def f(x, x):\n    return aux(x) + 1"),
        (AUX, body("global x", "return aux(x) + 1")),
        (AUX, body("nonlocal y", "return aux(x) + 1")),
        (AUX, body("y = await aux(x)", "return y + 1")),
    ),
)

HELPER_DOES_NOT_COMPILE = RewardCase(
    "A M",
    1.0,
    ("aux: found", "f: found", "syntax: error in aux line", "tests: not run"),
    "implementation: OK",
    False,
    (
        (helper("break", "return 2 * x"), MAIN),
        ("def aux(x, x):\n    return 2 * x", MAIN),
        (helper("nonlocal y", "return 2 * x"), ALONE),
    ),
)
