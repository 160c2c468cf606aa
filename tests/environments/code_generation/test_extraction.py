"""Extraction of functions from responses, and joint programs."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.environments.code_generation.extraction import MAX_CHARS, extract_function, extract_preamble, strip_fence
from marl_ray.sandbox import Program

DATA = Path(__file__).parents[4] / "shared" / "data" / "humaneval.jsonl"
GOOD = "def f(x):\n    return x"
TASK = Task(
    "t",
    "from typing import List\n\n\ndef f(x: List) -> int:\n    '''Do.'''\n",
    {"entry_point": "f", "tests": ("assert f(1)",)},
)


def joint_program(task: Task, responses: list[str]) -> Program:
    return CodeGeneration(len(responses)).attempt(task, responses, last=True).program


INDENTED = GOOD.replace("def", "    def").replace("\n", "\n    ")

CHATTY = [
    # Prose around, several fences, usage shown after or before.
    f"Here's the function:\n\n{GOOD}\n\nHere's how it works: it doesn't do much.",
    f"```python\n{GOOD}\n```\n\nExample usage:\n\n```python\nprint(f(1))\n```\n\nOutput:\n```\n1\n```",
    f"To install:\n```bash\npip install x\n```\nThen:\n```python\n{GOOD}\n```",
    f"```python\n{GOOD}\n```\nThe result isn't cached. Let's see `f(2)`:\n```python\nassert f(2) == 2\n```",
    f"```\ndef f(x):\n    pass  # to do\n```\nThe whole of it:\n```\n{GOOD}\n```",
    f"First try:\n```python\ndef f(x):\n    return 0\n```\nCorrected:\n```python\n{GOOD}\n```",
    f"```python\n{GOOD}\n```\nAnother way:\n```python\ndef f(x):\n    y = [",
    f"~~~python\n{GOOD}\n~~~",
    f"```Python\n{GOOD}\n```\nDone.",
    f"````\n{GOOD}\n````\nDone.",
    f"```python {{.numberLines}}\n{GOOD}\n```\nDone.",
    # Cut off after the function, in a fence that is never closed.
    f"```python\n{GOOD}\n\n# Test the function\nprint(f(1",
    f"Sure!\n```python\n{GOOD}\n\ndef main():\n    print(f'{{f(",
    f"```python\n{GOOD}\n```\n\nThis function takes an argument `x` and",
    # Indented answers; list items; a quotation.
    INDENTED,
    f"    import math\n\n{INDENTED}",
    f"Here it is:\n\n{INDENTED}\n\nDone.",
    "1. Write it:\n\n   ```python\n   def f(x):\n       return x\n   ```\n\n2. Run it.",
    "- Code:\n  ```python\n  def f(x):\n      return x\n  ```",
    "1. def f(x):\n       return x\n2. print(f(1))".replace("       ", "    "),
    "\t" + GOOD.replace("\n", "\n\t") + "\n\nDone.",
    # A fence on the function's own line, or on its last.
    "``` def f(x):\n    return x\n```\nDone.",
    "```python def f(x):\n    return x```",
    "Use `def f(x):\n    return x`.",
    f"{GOOD}```",
    f"{GOOD} ```\nDone, isn't it?",
    f"<code>\n{GOOD}\n</code>",
    f"### Solution\n{GOOD}\n### Explanation\nIt's simple.",
    f"# Solution\n{GOOD}\n# Explanation\nIt's simple.",
    f"Problem: write f.\nAnswer:\n{GOOD}\nProblem: write g.\nAnswer:\ndef g(x):",
    f"class Solution:\n    def f(self, x):\n        return (0\n\n{GOOD}\n",
    f"{GOOD}\n\nassert f(1) == 1\nassert f(2) == 2\nassert f(",
]


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
        *CHATTY,
    ],
)
def test_the_function_is_found(response: str) -> None:
    found = extract_function(response, "f")
    assert (found.code, found.problem) == (GOOD, "")


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python def f(x): return x```", "def f(x): return x"),
        ("The answer is `def f(x): return x`.", "def f(x): return x"),
        ("Sure! ```def f(x): return x``` It's short.", "def f(x): return x"),
        (
            "```python\ndef f(x):\n    '''Do.\n\n```\nf(1)\n```\n    '''\n    return x\n```\nDone.",
            "def f(x):\n    '''Do.\n\n```\nf(1)\n```\n    '''\n    return x",
        ),
        ("Here:\ndef f(\n    x,\n):\n    return x\nDone.", "def f(\n    x,\n):\n    return x"),
        ("Here:\ndef f(x):\n# a note\n    return x\nDone.", "def f(x):\n# a note\n    return x"),
        ("Here:\ndef f(x):\n    return '''\na'''\nDone.", "def f(x):\n    return '''\na'''"),
        ("Here:\ndef f(x):\n    return (x\n+ 1)\nDone.", "def f(x):\n    return (x\n+ 1)"),
        ("Here:\n@a\n@b(1)\ndef f(x):\n    return x\nDone.", "@a\n@b(1)\ndef f(x):\n    return x"),
        ("Here:\ndef f(x):\n    return '`' + x\nDone.", "def f(x):\n    return '`' + x"),
    ],
)
def test_the_source_of_the_function_is_kept(response: str, code: str) -> None:
    found = extract_function(response, "f")
    assert (found.code, found.problem) == (code, "")


def test_imports_and_decorators_are_kept() -> None:
    function = "@c\ndef f(x):\n    return math.pi"
    imports = "import math, re\nfrom functools import cache as c\nimport os"
    found = extract_function(f"{imports}\n\n{function}\nK = 1", "f")
    assert found.code == "import math, re\nfrom functools import cache as c\n" + function
    assert found.imported == {"math", "re", "c"}
    broken = extract_function(
        f"Use this:\nimport math\nfrom functools import (\n    cache as c,\n)\nfrom the start\n{function}", "f"
    )
    assert broken.code == "import math\nfrom functools import cache as c\n" + function
    indented = extract_function(
        "1. First:\n    import math\n    from functools import cache as c\n"
        "    @c\n    def f(x):\n        return math.pi",
        "f",
    )
    assert indented.code == broken.code
    assert extract_function(f"import no_such_module\n{GOOD}", "f").code == GOOD


@pytest.mark.parametrize(
    "beside",
    ["LIMIT = 3", "def other(x):\n    return x", "class Other:\n    pass", "print(f(1))", "def aux(x):\n    return 2"],
)
def test_only_the_function_enters_the_program(beside: str) -> None:
    assert extract_function(f"{beside}\n\n{GOOD}", "f").code == GOOD
    assert extract_function(f"{GOOD}\n\n{beside}\n\nThat is all.", "f").code == GOOD


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
        ("I cannot do this.", "no function of that name"),
        ("def g(x):\n    return x\nAnd that is it.", "no function of that name"),
        ("class Solution:\n    def f(self, x):\n        return x\nThat is all.", "no function of that name"),
        ("def g(x):\n    def f(x):\n        return x\n    return (f", "no function of that name"),
        ("Write `def f(x):` and then return x.", "no function of that name"),
        ("def function(x):\n    return x\nDone.", "no function of that name"),
    ],
)
def test_why_a_function_does_not_count(response: str, problem: str) -> None:
    assert extract_function(response, "f").problem == problem


def test_a_broken_definition_brings_its_own_lines() -> None:
    assert extract_function("```\ndef f(x)\n    return x\n```", "f").code == "def f(x)\n    return x"
    found = extract_function(
        "Sure:\n```python\nimport math\n\ndef f(x)\n    return x\n\nprint(f(1))\n```\nIt is fast.", "f"
    )
    assert (found.code, found.problem, found.function) == ("def f(x)\n    return x", "does not parse", None)


@pytest.mark.parametrize(
    "response", ["I cannot do this.", "```python\ndef g(x):\n    return (x\n```", "x = (", '"""', "```"]
)
def test_an_answer_without_the_function_brings_nothing(response: str) -> None:
    found = extract_function(response, "f")
    assert (found.code, found.defined) == ("", False)


def test_a_function_cut_off_by_the_token_limit_keeps_what_parses() -> None:
    found = extract_function("def f(x):\n    if x:\n        return 1\n    y = [1, 2,\n         3", "f")
    assert (found.code, found.problem) == ("def f(x):\n    if x:\n        return 1", "")
    found = extract_function("def f(x):\n    for i in x:\n        total = [1, 2,\n         3", "f")
    assert (found.code.split("\n")[-1], found.problem) == ("         3", "does not parse")


WHOLE = "def f(x):\n    return 1"
BEGINNING = "def f(x):\n    return 2\n    y = ("
WITHOUT_VALUE = "def f(x):\n    print(3)"
BROKEN = "def f(x):\n    y = (4"


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (WHOLE, BEGINNING, "return 1"),
        (WHOLE, WITHOUT_VALUE, "return 1"),
        (WHOLE, BROKEN, "return 1"),
        (BEGINNING, WITHOUT_VALUE, "return 2"),
        (BEGINNING, BROKEN, "return 2"),
        (WITHOUT_VALUE, BROKEN, "print(3)"),
        (BROKEN, BROKEN.replace("4", "5"), "y = (5"),
        (WITHOUT_VALUE, WITHOUT_VALUE.replace("3", "6"), "print(6)"),
        (WHOLE, WHOLE.replace("1", "7"), "return 7"),
    ],
)
def test_the_best_definition_is_taken_and_the_last_of_equals(first: str, second: str, line: str) -> None:
    for one, two in ((first, second), (second, first)):
        text = f"Try this:\n```python\n{one}\n```\nOr better:\n```python\n{two}\n```\nThat's all."
        if (one, two) == (first, second) or one.split("\n")[1][:8] != two.split("\n")[1][:8]:
            assert extract_function(text, "f").code.split("\n")[-1].strip() == line


def test_joint_program() -> None:
    aux = "from __future__ import annotations\nimport math\n\ndef aux(x: Unknown):\n    return math.floor(x)"
    main = "def f(x: List) -> int:\n    return aux(x) + 1"
    program = joint_program(TASK, [aux, main])
    assert program.source == (
        "from __future__ import annotations\n"
        "from typing import List\n\n"
        "import math\ndef aux(x: Unknown):\n    return math.floor(x)\n\n"
        "def f(x: List) -> int:\n    return aux(x) + 1\n"
    )
    assert (program.tests, program.entry_point, program.prompt) == (("assert f(1)",), "f", TASK.prompt)
    exec(compile(program.source, "<program>", "exec"), {})


def test_math_is_there_without_an_import() -> None:
    main = "def f(x):\n    return math.floor(x)"
    imports = "from typing import List"
    assert joint_program(TASK, [main]).source == f"import math\n{imports}\n\n{main}\n"
    imported = joint_program(TASK, [f"import math\n{main}"]).source
    assert imported == f"{imports}\n\nimport math\n{main}\n"
    future = joint_program(TASK, [f"from __future__ import annotations\n{main}"]).source
    compile(future, "<program>", "exec")
    assert "import math" not in joint_program(TASK, ["def f(x):\n    return 'math'"]).source


def test_joint_program_of_nothing() -> None:
    assert joint_program(TASK, ["", ""]).source == "from typing import List\n"
    empty = Task("t", "Say hello.", {"entry_point": "f", "tests": ("assert f(1)",)})
    assert joint_program(empty, ["", "", ""]).source == "\n"


def test_a_problem_gives_its_finished_definitions() -> None:
    prompt = (
        "import math\nLIMIT = 3\n\ndef given(x):\n    '''Given.'''\n    return x\n\n"
        "def stub(x):\n    '''To do.'''\n\ndef f(x):\n    '''The one.'''\n    ...\n"
    )
    assert extract_preamble(prompt, frozenset(["f", "aux"])).code == (
        "import math\nLIMIT = 3\ndef given(x):\n    '''Given.'''\n    return x"
    )
    assert extract_preamble("Find it.\nimport re\nfrom the list, quickly", frozenset()).code == "import re"


def test_a_syntax_error_that_only_the_compiler_sees_is_in_the_program() -> None:
    source = joint_program(TASK, ["def aux(a, a):\n    return a", GOOD]).source
    ast.parse(source)
    with pytest.raises(SyntaxError):
        compile(source, "<program>", "exec")


@pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not there")
def test_the_solutions_of_humaneval_are_whole() -> None:
    for line in DATA.read_text().splitlines():
        row = json.loads(line)
        solution = row["prompt"] + row["canonical_solution"]
        found = extract_function(f"Here it is:\n```python\n{solution}\n```\nDone.", row["entry_point"])
        assert found.defined, row["task_id"]
        assert found.code.rstrip().split("\n")[-1] in solution.rstrip().split("\n")[-1], row["task_id"]
        task = Task(row["task_id"], row["prompt"], {"entry_point": row["entry_point"], "tests": row["test"]})
        compile(joint_program(task, ["", solution]).source, row["task_id"], "exec")


def test_clean_cuts_what_is_too_long() -> None:
    assert len(strip_fence("x" * 1_000_000)) == MAX_CHARS
