"""From responses to contributions and joint programs; and garbage, which must never raise."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.environments import CodeGeneration
from marl_ray.environments.extraction import MAX_CHARS, clean, contribution, preamble
from marl_ray.messages import Task
from marl_ray.sandbox import ExecutionReport

DATA = Path(__file__).parents[2] / "shared" / "data" / "humaneval.jsonl"
GOOD = "def f(x):\n    return x"
TASK = Task("t", "from typing import List\n\n\ndef f(x: List) -> int:\n    '''Do.'''\n", "f", ("assert f(1)",))
REPORT = ExecutionReport((), None, "", 0.0, 0.0, "none", True)


@pytest.mark.parametrize(
    "response",
    [
        GOOD,
        f"\n\n{GOOD}\n\n",
        f"```python\n{GOOD}\n```",
        f"```\n{GOOD}\n```\n",
        f"```python\n{GOOD}",
        f"Sure, here it is:\n```python\n{GOOD}\n```\nI hope this helps!",
        f"{GOOD}\n\nThis function returns x.",
        f"{GOOD}\n    y = = 1\n",
        f"def f(x):\n    return 0\n\n{GOOD}\n\nprint(f(1))",
        f"def g(x):\n    return 0\n\n{GOOD}",
        f"{GOOD}\n\ndef g(x:\n    broken",
        f"def g(x:\n\n{GOOD}\n",
        f"{GOOD}\n\ndef f(x",
        GOOD.replace("\n", "\r\n"),
        f"assert f(1) == 1\n{GOOD}\nassert f(2) == 2",
        f'{GOOD}\n"""never closed',
        f"{GOOD}\n\x00",
    ],
)
def test_the_function_is_found(response: str) -> None:
    found = contribution(response, "f")
    assert (found.code, found.problem) == (GOOD, "")


def test_imports_and_decorators_come_along() -> None:
    response = "import math, re\nfrom functools import cache as c\n\n@c\ndef f(x):\n    return math.pi\nK = 1"
    found = contribution(response, "f")
    assert found.code == ("import math, re\nfrom functools import cache as c\n@c\ndef f(x):\n    return math.pi")
    assert found.imported == {"math", "re", "c"}
    broken = contribution("Use this:\nimport math\nfrom the start\n\n" + GOOD, "f")
    assert broken.code == "import math\n" + GOOD


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        ("", "empty answer"),
        (" \n```python\n```", "empty answer"),
        ("x = 1", "no function of that name"),
        ("if True:\n    def f(x):\n        return x", "no function of that name"),
        ("async def f(x):\n    return x", "no function of that name"),
        ("class f:\n    pass", "no function of that name"),
        ("f = lambda x: x", "no function of that name"),
        ("def f(x):\n    print(x)", "no return value"),
        ("def f(x):\n    return", "no return value"),
        ("def f(x):\n    def g():\n        return 1\n    g()", "no return value"),
        ("def f(x):\n    class C:\n        def m(self):\n            return 1", "no return value"),
        ("def f(x):\n    g = lambda: (yield)", "no return value"),
        ("def f(x)\n    return x", "does not parse"),
        ("def f(x):\n    return (x", "does not parse"),
        ("def f(x):", "does not parse"),
        ("I cannot do this.", "does not parse"),
        ("def g(x):\n    return x\nAnd that is it.", "does not parse"),
    ],
)
def test_why_a_function_does_not_count(response: str, problem: str) -> None:
    assert contribution(response, "f").problem == problem


def test_what_does_not_parse_stays_as_it_is() -> None:
    assert contribution("```\ndef f(x)\n    return x\n```", "f").code == "def f(x)\n    return x"


def test_a_function_cut_off_by_the_token_limit_keeps_what_parses() -> None:
    found = contribution("def f(x):\n    if x:\n        return 1\n    y = [1, 2,\n         3", "f")
    assert found.code == "def f(x):\n    if x:\n        return 1"


def test_joint_program() -> None:
    aux = "from __future__ import annotations\nimport math\n\ndef aux(x: Unknown):\n    return math.floor(x)"
    main = "def f(x: List) -> int:\n    return aux(x) + 1"
    program = CodeGeneration(2).program(TASK, [aux, main])
    assert program.source == (
        "from __future__ import annotations\n"
        "from typing import List\n\n"
        "import math\ndef aux(x: Unknown):\n    return math.floor(x)\n\n"
        "def f(x: List) -> int:\n    return aux(x) + 1\n"
    )
    assert (program.tests, program.entry_point, program.prompt) == (TASK.tests, "f", TASK.prompt)
    exec(compile(program.source, "<program>", "exec"), {})


def test_joint_program_of_nothing() -> None:
    assert CodeGeneration(2).program(TASK, ["", ""]).source == "from typing import List\n"
    empty = Task("t", "Say hello.", "f", ("assert f(1)",))
    assert CodeGeneration(3).program(empty, ["", "", ""]).source == "\n"


def test_a_problem_gives_its_finished_definitions() -> None:
    prompt = (
        "import math\nLIMIT = 3\n\ndef given(x):\n    '''Given.'''\n    return x\n\n"
        "def stub(x):\n    '''To do.'''\n\ndef f(x):\n    '''The one.'''\n    ...\n"
    )
    assert preamble(prompt, frozenset(["f", "aux"])).code == (
        "import math\nLIMIT = 3\ndef given(x):\n    '''Given.'''\n    return x"
    )
    assert preamble("Find it.\nimport re\nfrom the list, quickly", frozenset()).code == "import re"


def test_a_syntax_error_that_only_the_compiler_sees_is_in_the_program() -> None:
    source = CodeGeneration(2).program(TASK, ["def aux(a, a):\n    return a", GOOD]).source
    ast.parse(source)
    with pytest.raises(SyntaxError):
        compile(source, "<program>", "exec")


def play(*responses: str) -> None:
    """All that is done with responses. None of it may raise; the program is what a file can hold."""
    environment = CodeGeneration(len(responses))
    program = environment.program(TASK, responses)
    program.source.encode("utf-8")
    assert "\0" not in program.source
    reward = environment.assess(TASK, responses, REPORT).reward
    assert 0.0 <= reward <= environment.max_reward
    environment.diagnose(TASK, responses, REPORT, 1)
    for previous in environment.previous_answers(TASK, responses):
        previous.encode("utf-8")


# fmt: off
PIECES = st.sampled_from([
    "def f(x):", "def aux(", "def aux(x):\n", "    return ", "return aux(x)", "\n", "    ", "\t", "\0",
    "```python\n", "```", '"""', "'", "(", ")", "[", "{", "\\", "\x0c", "\x85", "\u2028", "\r", "@", "\ud800",
    "import ", "from x import *", "from . import y\n", "if x:", "else:\n", "try:\n", "match x:\n", "lambda:",
    "0xF", "1" * 5000, "1e999", "async ", "await ", "yield ", "*", ":=", "f'{", "}", "\\N{", "𝕗", "é", "#",
    "case _:\n", ";",
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
]


@pytest.mark.parametrize("number", range(len(DEEP)))
def test_deep_and_long_responses_are_looked_at_quickly(number: int) -> None:
    started = time.monotonic()
    play(DEEP[number], DEEP[number])
    play(DEEP[number])
    assert time.monotonic() - started < 10


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not there")
def test_the_solutions_of_humaneval_are_whole() -> None:
    for line in DATA.read_text().splitlines():
        row = json.loads(line)
        solution = row["prompt"] + row["canonical_solution"]
        found = contribution(f"Here it is:\n```python\n{solution}\n```\nDone.", row["entry_point"])
        assert found.defined, row["task_id"]
        assert found.code.rstrip().split("\n")[-1] in solution.rstrip().split("\n")[-1], row["task_id"]
        task = Task(row["task_id"], row["prompt"], row["entry_point"], row["test"])
        compile(CodeGeneration(2).program(task, ["", solution]).source, row["task_id"], "exec")


def test_clean_cuts_what_is_too_long() -> None:
    assert len(clean("x" * 1_000_000)) == MAX_CHARS
