"""A parsed joint action of code generation: the functions in the responses, the joint program, the use of helpers.

The joint program consists of the problem's imports and complete definitions, each helper, and main. `math` is always
available, as in CoMLRL's programs. The program of a script ends with a call of main.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation.extraction import ExtractedFunction, extract_function, extract_preamble
from marl_ray.environments.code_generation.usage import HelperUse, helper_use
from marl_ray.sandbox import Program

CACHED_RESPONSES = 256
"""Parsed responses in memory. In joint mode `cross` each response is part of many joint actions of its node."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One parsed response. `use` is main's use of the helpers, empty for a helper."""

    part: ExtractedFunction
    use: HelperUse


@dataclass(frozen=True, slots=True)
class CodeAttempt:
    """A parsed joint action. Lists have one entry per agent, main's last.

    `starts` are the lines of the program on which each agent's code starts (0 if the agent contributes none), `given` is
    the problem's own code, and `call` the end of a script.
    """

    responses: tuple[str, ...]
    given: ExtractedFunction
    answers: tuple[Answer, ...]
    starts: tuple[int, ...]
    program: Program
    call: str = ""

    @property
    def parts(self) -> list[ExtractedFunction]:
        return [answer.part for answer in self.answers]

    @property
    def use(self) -> HelperUse:
        return self.answers[-1].use

    def with_statement(self, statement: str) -> Program:
        """Return the joint program with one more statement after all definitions."""
        source = f"{self.program.source.removesuffix(self.call)}\n\n{statement}\n{self.call}"
        return replace(self.program, source=source, visible=None)


def code_attempt(task: Task, responses: Sequence[str], helpers: tuple[str, ...], visible: int | None) -> CodeAttempt:
    """Parse a joint action. `visible` are the tests that feedback may mention, as in `Program`."""
    entry_point, script = task.fields["entry_point"], is_script(task)
    given = _preamble(task.prompt, frozenset((*helpers, entry_point)))
    answers = [_helper_answer(response, name) for response, name in zip(responses[:-1], helpers, strict=True)]
    answers.append(_main_answer(responses[-1], entry_point, helpers, script))
    source, starts = _join(given, [answer.part for answer in answers])
    call = f"\n\n{entry_point}()\n" if script else ""
    program = Program(source + call, task.fields["tests"], entry_point, prompt=task.prompt, visible=visible)
    return CodeAttempt(tuple(responses), given, tuple(answers), starts, program, call)


def is_script(task: Task) -> bool:
    """Return whether the task's program reads standard input and prints, so main has no parameters and no result."""
    return bool(task.fields.get("script"))


_preamble = lru_cache(CACHED_RESPONSES)(extract_preamble)


@lru_cache(CACHED_RESPONSES)
def _helper_answer(response: str, name: str) -> Answer:
    return Answer(extract_function(response, name), HelperUse())


@lru_cache(CACHED_RESPONSES)
def _main_answer(response: str, name: str, helpers: tuple[str, ...], script: bool) -> Answer:
    part = extract_function(response, name)
    if not script or not part.exists:
        return Answer(part, helper_use(part, helpers))
    part = replace(part, problem="")
    return Answer(part, helper_use(_with_return(part), helpers))


def _with_return(part: ExtractedFunction) -> ExtractedFunction:
    """Return the function with a final `print(x)` replaced by `return x`, for the analysis of helper use."""
    assert part.function is not None
    *before, last = part.function.body
    match last:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[ast.expr() as value], keywords=[])):
            function = copy.copy(part.function)
            function.body = [*before, ast.copy_location(ast.Return(value), last)]
            return replace(part, function=function)
    return part


def _join(given: ExtractedFunction, parts: Sequence[ExtractedFunction]) -> tuple[str, tuple[int, ...]]:
    """Return the joint program, and the line on which each part starts."""
    future = dict.fromkeys(line for part in (given, *parts) for line in part.future)
    math = any(part.mentions("math") for part in parts) and not any("math" in part.imported for part in parts)
    source = "\n".join([*future, *["import math"] * math, *[given.code] * bool(given.code)])
    starts = []
    for part in parts:
        if source and part.code:
            source += "\n\n"
        starts.append(source.count("\n") + 1 if part.code else 0)
        source += part.code
    return source + "\n", tuple(starts)
