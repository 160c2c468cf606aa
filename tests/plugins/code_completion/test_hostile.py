"""Unusual and hostile responses: nothing raises on them or takes long."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marl_ray.plugins.code_completion.environment import CodeCompletion
from marl_ray.sandbox import ExecutionReport
from tests.plugins.code_completion.helpers import RIGHT, TASK

REPORT = ExecutionReport((), None, "", 0.0, 0.0, "none", True)


def play(*responses: str) -> str:
    """Call everything that processes responses. Nothing may raise, and a file can hold the program."""
    environment = CodeCompletion(len(responses))
    attempt = environment.attempt(TASK, responses, last=False)
    source = attempt.program.source
    source.encode("utf-8")
    assert "\0" not in source
    outcome = environment.outcome(attempt, REPORT)
    assert -1.0 <= outcome.reward <= environment.max_reward
    for mode in environment.modes:
        for agent in range(len(responses)):
            environment.feedback(attempt, outcome, mode, agent)
    for text in (*attempt.answers, environment.question(TASK, attempt)):
        text.encode("utf-8")
    return source


# fmt: off
PIECES = st.sampled_from([
    "def pop(self):", "def root(x):\n", "async def push(", "class Stack:\n", "    return ", "return self.push(1)", "\n",
    "    ", "\t", "\0", "```python\n", "```", '"""', "'", "(", ")", "[", "{", "\\", "\x0c", "\x85", "\u2028", "\r", "@",
    "\ud800", "import os\n", "from a import (b,\n", "lambda: ", "f'{", "}", "if x:\n", "else:\n", "# ", ";", "- ",
])
# fmt: on


@settings(max_examples=250, deadline=None)
@given(pieces=st.lists(PIECES, max_size=30))
@example(["def root(x):\n", "\x0c", "    ", "import os\n"])
@example(["def root(x):\n", "    return ", "\\", "```python\n"])
def test_extracted_methods_parse_in_the_class(pieces: list[str]) -> None:
    ast.parse(play("".join(pieces), RIGHT[1]))


LONG = [
    "def pop(self):\n" * 4_000,
    "".join(f"{' ' * n}def pop(self):\n" for n in range(240)),
    "".join(f"{' ' * n}def f{n}(self):\n" for n in range(90)) + " " * 90 + "return (",
    "def pop(self):\n    return " + "(" * 20_000,
    "def pop(self):\n    return " + "-" * 20_000 + "1",
    "def pop(self):\n    '''" + "x\n" * 15_000,
    ("def pop(self):\n    return '''\n" * 900) + "'''",
    "@" * 30_000,
    "@a\n" * 10_000 + "def pop(self):\n    return 1",
    "class Stack:\n" * 2_000,
    "import os\n" * 3_000,
    "7" * 32_000,
]


@pytest.mark.parametrize("response", LONG, ids=range(len(LONG)))
def test_long_responses_are_parsed_quickly(response: str) -> None:
    started = time.process_time()
    play(response, response)
    assert time.process_time() - started < 2.0
