"""Extraction of methods from responses, and their source in the class."""

from __future__ import annotations

import ast

import pytest

from marl_ray.core.episode import Task
from marl_ray.plugins.code_completion.environment import CodeCompletion
from marl_ray.plugins.code_completion.extraction import extract_methods
from tests.plugins.code_completion.helpers import POP, PUSH, REPLACE, ROOT, SKELETON, TASK


def found(response: str) -> set[str]:
    return set(extract_methods(response, "Stack").methods)


def indented(text: str, by: str = "    ") -> str:
    return "\n".join(by + line if line else line for line in text.split("\n"))


@pytest.mark.parametrize(
    "response",
    [
        f"{POP}\n\n{ROOT}",
        indented(f"{POP}\n\n{ROOT}"),
        indented(f"{POP}\n\n{ROOT}").lstrip(),  # continues at the skeleton's indentation
        indented(f"{POP}\n\n{ROOT}", "\t"),
        f"class Stack:\n{indented(POP)}\n\n{indented(ROOT)}",
        f"import math\n\nclass Other:\n    def push(self): return 1\n\nclass Stack:\n{indented(POP)}\n{indented(ROOT)}",
        f"Here:\n```python\n{POP}\n\n{ROOT}\n```\nThat's it.",
        f"Here:\n\n    class Stack:\n{indented(POP, ' ' * 8)}\n\n{indented(ROOT, ' ' * 8)}\n\nThat's (it.",
        f"{POP}\n\n{ROOT}\n\ndef push(self, item):\n    self.items.app",  # truncated, but parses
        f"1. First:\n{POP}\n2. Then\n{ROOT}\n",
        f"- {POP}\n- {ROOT}",
        f"{POP}\n\ndef push(self, item):\n    return (\n\n{ROOT}",
        f"Here:\n\ndef push(self, item):\n    return '''\nfar out'''\n\n{POP}\n\n{ROOT}\n\nThat's it.",
    ],
)
def test_methods_are_found(response: str) -> None:
    assert {"pop", "root"} <= found(response)
    assert "__init__" not in found(response)


@pytest.mark.parametrize(
    ("response", "methods", "broken"),
    [
        ("", set(), set()),
        ("I would rather not.", set(), set()),
        ("def pop(self):\n    return (self.items", set(), {"pop"}),
        ("def pop(self):\n    x = 1\n    y = = 2\n    return x", set(), {"pop"}),
        ("def pop(self):\n    x = 1\n    def inner(:\n        pass\n    return x", set(), {"pop", "inner"}),
        ('def pop(self):\n    """Take', set(), {"pop"}),
        (f"def pop(self):\n    return (\n\n{POP}", {"pop"}, set()),
        (f"{POP}\n\ndef pop(self):\n    return (", {"pop"}, set()),
        ('def pop(self):\n    """Only said."""\n\ndef push(self, item):\n    pass', set(), set()),
        ("async def pop(self):\n    return await self.x", {"pop"}, set()),
        ("pop = lambda self: self.items.pop()", set(), set()),
        ("class Stack:\n    class Inner:\n        def pop(self):\n            return 1\n", set(), set()),
        ("if True:\n    def pop(self):\n        return 1\n", set(), set()),
    ],
)
def test_stubs_other_code_and_broken_methods_do_not_count(response: str, methods: set[str], broken: set[str]) -> None:
    answer = extract_methods(response, "Stack")
    assert (set(answer.methods), answer.broken) == (methods, broken)


def test_the_last_of_several_definitions_counts() -> None:
    answer = extract_methods(f"{POP}\n\ndef pop(self):\n    return 2", "Stack")
    assert "return 2" in answer.methods["pop"].code("    ")


def in_class(*responses: str, skeleton: str = SKELETON) -> ast.ClassDef:
    """Return the class merged from two responses as a syntax tree."""
    attempt = CodeCompletion(2).attempt(Task("t", skeleton, TASK.fields), responses, last=True)
    (node,) = (node for node in ast.parse(attempt.program.source).body if isinstance(node, ast.ClassDef))
    return node


WRITTEN = '''\
@functools.lru_cache
async def pop(self, *, depth: int = 1) -> "int":
    """Take
  the top."""
    # lines within the string keep their indentation
    text = f"""
{depth}
    two""" + """
    three
"""

    def inner(x):
        return lambda: x

    return inner(text)()'''


@pytest.mark.parametrize("indent", ["", "    ", "\t", "      "])
def test_the_source_of_a_method_is_kept(indent: str) -> None:
    (written,) = ast.parse(WRITTEN).body
    assert isinstance(written, ast.AsyncFunctionDef)
    lines = WRITTEN.split("\n")
    strings = {3, 6, 7, 8, 9}
    moved = "\n".join(line if number in strings or not line else indent + line for number, line in enumerate(lines))
    node = in_class(f"import functools\n\n{moved}\n" if not indent else moved, "")
    (pop,) = (member for member in node.body if getattr(member, "name", "") == "pop")
    assert ast.dump(pop) == ast.dump(written)


def test_decorators_of_the_skeleton_are_kept() -> None:
    node = in_class("def root(x):\n    return x\n\n@other\ndef pop(self):\n    return 1", "")
    decorators = {
        m.name: [ast.unparse(d) for d in m.decorator_list] for m in node.body if isinstance(m, ast.FunctionDef)
    }
    assert (decorators["root"], decorators["pop"]) == (["staticmethod"], ["other"])


def test_only_needed_helper_methods_and_imports_are_kept() -> None:
    pop = "def pop(self):\n    return self._taken(heapq.nlargest)"
    helper = "def _taken(self, x):\n    return self._really(x)\n\ndef _really(self, x):\n    return Counter(x)"
    other = "def unused(self):\n    return 1\n\ndef __init__(self):\n    self.items = 5\n\nLIMIT = 3\nprint('hello')"
    imports = "import heapq, os\nimport os.path\nfrom collections import Counter\nfrom __future__ import annotations"
    attempt = CodeCompletion(2).attempt(TASK, [f"{imports}\n{helper}\n{pop}\n{other}", PUSH], last=True)
    source = attempt.program.source
    assert source.startswith("from __future__ import annotations\nimport math\n")
    assert "import heapq, os\nfrom collections import Counter\nclass Stack:" in source
    members = [m.name for m in in_class(f"{helper}\n{pop}\n{other}", PUSH).body if isinstance(m, ast.FunctionDef)]
    assert members == ["__init__", "push", "pop", "replace", "root", "_taken", "_really"]
    assert "unused" not in source
    assert "LIMIT" not in source
    assert "self.items = 5" not in source


def test_a_response_without_methods_contributes_nothing() -> None:
    source = (
        CodeCompletion(2)
        .attempt(TASK, [f"from os import *\nfrom __future__ import x\n{PUSH}", ""], True)
        .program.source
    )
    assert source.startswith("import math\n\n\nclass Stack:")
    assert "append" not in source


def test_the_first_of_two_equally_named_helper_methods_is_used() -> None:
    mine = "def _one(self):\n    return 1\n\ndef pop(self):\n    return self._one()"
    yours = "def _one(self):\n    return 2\n\ndef push(self, item):\n    self._one()"
    source = CodeCompletion(2).attempt(TASK, [mine, yours], last=True).program.source
    assert "return 1" in source
    assert "return 2" not in source


def test_missing_methods_raise() -> None:
    node = in_class("", REPLACE)
    bodies = {member.name: ast.unparse(member.body[-1]) for member in node.body if isinstance(member, ast.FunctionDef)}
    assert bodies["push"] == "raise NotImplementedError('push')"
    assert bodies["root"] == "raise NotImplementedError('root')"
    assert "raise" not in bodies["replace"]
    assert bodies["__init__"] == "self.items = []"


def test_starts_are_the_first_lines_of_methods() -> None:
    pop = "def pop(self):\n    return self._one()\n\ndef _one(self):\n    return 1"
    attempt = CodeCompletion(2).attempt(TASK, [f"import os\n{pop}\n{ROOT}", f"{PUSH}\n"], last=True)
    lines = attempt.program.source.split("\n")
    begun = {name: lines[start - 1].strip() for name, start in attempt.starts.items()}
    assert begun["pop"] == "def pop(self):"
    assert begun["_one"] == "def _one(self):"
    assert begun["root"] == "@staticmethod"
    assert begun["push"] == "def push(self, item):"
    assert begun["replace"].startswith("def replace(")
