"""Unusual and hostile responses: nothing raises on them or takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.extraction import extract_function
from marl_ray.environments.code_generation.usage import helper_use
from marl_ray.sandbox import ExecutionReport

TASK = Task(
    "t",
    "from typing import List\n\n\ndef f(x: List) -> int:\n    '''Do.'''\n",
    {"entry_point": "f", "tests": ("assert f(1)",)},
)
REPORT = ExecutionReport((), None, "", 0.0, 0.0, "none", True)


def play(*responses: str) -> None:
    """Call everything that processes responses. Nothing may raise, and a file can hold the program."""
    environment = CodeGeneration(len(responses))
    attempt = environment.attempt(TASK, responses, last=False)
    attempt.program.source.encode("utf-8")
    assert "\0" not in attempt.program.source
    outcome = environment.outcome(attempt, REPORT)
    assert 0.0 <= outcome.reward <= environment.max_reward
    for mode in environment.modes:
        environment.feedback(attempt, outcome, mode, len(responses) - 1)
    for text in (*attempt.answers, environment.question(TASK, attempt)):
        text.encode("utf-8")


# fmt: off
PIECES = st.sampled_from([
    "def f(x):", "def aux(", "def aux(x):\n", "    return ", "return aux(x)", "\n", "    ", "\t", "\0",
    "```python\n", "```", '"""', "'", "(", ")", "[", "{", "\\", "\x0c", "\x85", "\u2028", "\r", "@", "\ud800",
    "import ", "from x import *", "from . import y\n", "if x:", "else:\n", "try:\n", "match x:\n", "lambda:",
    "0xF", "1" * 5000, "1e999", "async ", "await ", "yield ", "*", ":=", "f'{", "}", "\\N{", "𝕗", "é", "#",
    "case _:\n", ";", "1. def f(x):", "- ", "~~~", "`", "aux", "map(aux, x)",
    "while True:\n", "break\n", "del x\n", "raise\n",
])
# fmt: on


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=25).map("".join), st.lists(PIECES, max_size=25).map("".join))
def test_pieces_of_code_never_raise(aux: str, main: str) -> None:
    play(aux, main)
    play("def aux(x):\n    return 1\n" + aux, "def f(x):\n" + main)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), max_size=200), st.text(st.characters(), max_size=200))
def test_text_never_raises(aux: str, main: str) -> None:
    play(aux, main)


DEEP = [
    "(" * 20_000,
    "def f(x):\n    return " + "(" * 150 + "aux(x)" + ")" * 150,
    "def f(x):\n    return " + "-" * 20_000 + "x",
    "def f(x):\n    return " + "x+" * 10_000 + "x",
    "def f(x):\n    return " + "x." * 10_000 + "x",
    "def f(x):\n    return x" + "[0]" * 9_000,
    "def f(x):\n    return " + "not " * 5_000 + "x",
    "def f(x):\n    return " + "lambda:" * 3_000 + "x",
    "def f(x):\n    return " + "[" * 199 + "]" * 199,
    "def f(x):\n    return " + "9" * 20_000,
    "def f(x):\n" + "".join(" " * (i + 1) + "if x:\n" for i in range(120)),
    "def f(x):\n    if x:\n        return 1\n" + "    elif x:\n        return aux(x)\n" * 900,
    "def f(x):\n    return x\n" + "@a\n" * 10_000,
    "def f(x):\n    return x\n" + "x = (\n" * 5_000,
    "def f(x\n" * 4_000,
    "def f(x):\n" * 3_000,
    "def f(x): return x\n" * 1_600 + "(",
    "import a\n" * 3_500 + "(",
    "def f(x):\n    return x\n" + "try:\n pass\n" * 3_000,
    "x" * 1_000_000,
    '"""' * 10_000,
    "\\\n" * 16_000,
    "def f(x): pass\nfrom a import (\n" * 1_000 + "(",
    "  def f(x):\n   x = (\n  import a\n" * 1_500,
    "def f(x):\n    y = (1\n" + "Don't do it, it's `bad`\n" * 1_300,
    "`def f(x):\n`" * 3_000,
    "@a\n" * 10_000 + "def f(x): (",
    "def f(x):\n" + "    y = = 1\n" * 2_900,
    "(" + " " * 31_000 + "`",
    "1. " * 10_000 + "(",
]


@pytest.mark.parametrize("number", range(len(DEEP)))
def test_deep_and_long_responses_are_looked_at_quickly(number: int) -> None:
    started = time.process_time()
    play(DEEP[number], DEEP[number])
    play(DEEP[number])
    assert time.process_time() - started < 10


MANY = [
    " def a(): return a()\n" * 1_100,
    "".join(f" a{number} = x\n" for number in range(2_400)),
    "".join(f" if x: a{number} = x\n" for number in range(1_500)),
    " if x: x = aux(x)\n" * 1_300,
    " while x: x = aux(x)\n" * 1_200,
    "".join(" " * depth + "for x in x:\n" for depth in range(1, 19)) + " " * 20 + "x = aux(x);" * 2_000 + "\n",
]


@pytest.mark.parametrize("number", range(len(MANY)))
def test_the_use_of_helpers_is_found_quickly_in_long_functions(number: int) -> None:
    function = extract_function(f"def f(x):\n{MANY[number]} return x\n", "f")
    assert function.defined
    started = time.process_time()
    helper_use(function, ["aux"])
    assert time.process_time() - started < 4
