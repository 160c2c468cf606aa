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
from marl_ray.environments.code_generation.extraction import (
    ExtractedFunction,
    extract_function,
    extract_preamble,
    mentioned_names,
    strip_fence,
)
from marl_ray.environments.code_generation.usage import HelperUse, helper_use
from marl_ray.sandbox import Limits, Program

CACHED_RESPONSES = 256
"""Parsed responses in memory. In joint mode `cross` each response is part of many joint actions of its node."""


@dataclass(frozen=True, slots=True)
class CodeAttempt:
    """A parsed joint action. Lists have one entry per agent, main's last. `use` is main's use of the helpers, `starts`
    are the lines of the program on which each agent's code starts (0 if the agent contributes none), and `call` is the
    end of a script."""

    responses: tuple[str, ...]
    parts: tuple[ExtractedFunction, ...]
    use: HelperUse
    starts: tuple[int, ...]
    program: Program
    call: str = ""

    @property
    def answers(self) -> list[str]:
        """Each agent's code in the joint program, or its whole response if it contributes none."""
        answers = []
        for part, response in zip(self.parts, self.responses, strict=True):
            answers.append(part.code or strip_fence(response))
        return answers

    def with_statement(self, statement: str, limits: Limits) -> Program:
        """Return the joint program with one more statement after all definitions."""
        source = f"{self.program.source.removesuffix(self.call)}\n\n{statement}\n{self.call}"
        return replace(self.program, source=source, visible=None, limits=limits)


def code_attempt(task: Task, responses: Sequence[str], helpers: tuple[str, ...], visible: int | None) -> CodeAttempt:
    """Parse a joint action. `visible` are the tests that feedback may mention, as in `Program`."""
    entry_point = task.fields["entry_point"]
    script = is_script(task)
    preamble = _cached_preamble(task.prompt, frozenset((*helpers, entry_point)))
    parts = []
    for response, helper in zip(responses[:-1], helpers, strict=True):
        parts.append(_cached_function(response, helper))
    main, use = _main(responses[-1], entry_point, helpers, script)
    parts.append(main)
    source, starts = _join(preamble, parts)
    call = f"\n\n{entry_point}()\n" if script else ""
    program = Program(source + call, task.fields["tests"], entry_point, prompt=task.prompt, visible=visible)
    return CodeAttempt(tuple(responses), tuple(parts), use, starts, program, call)


def is_script(task: Task) -> bool:
    """Return whether the task's program reads standard input and prints, so main has no parameters and no result."""
    return bool(task.fields.get("script"))


_cached_preamble = lru_cache(CACHED_RESPONSES)(extract_preamble)
_cached_function = lru_cache(CACHED_RESPONSES)(extract_function)


@lru_cache(CACHED_RESPONSES)
def _main(response: str, name: str, helpers: tuple[str, ...], script: bool) -> tuple[ExtractedFunction, HelperUse]:
    part = extract_function(response, name)
    if not script or part.function is None:
        return part, helper_use(part, helpers)
    part = replace(part, problem="")  # the main function of a script prints, and need not return
    return part, helper_use(_with_return(part), helpers)


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


def _join(preamble: ExtractedFunction, parts: Sequence[ExtractedFunction]) -> tuple[str, tuple[int, ...]]:
    """Return the joint program, and the line on which each part starts."""
    mentions_math = False
    imports_math = False
    lines = list(preamble.future)
    for part in parts:
        lines += part.future
        imports_math |= "math" in part.imported
        if part.function is not None:
            mentions_math |= "math" in mentioned_names(part.function)
    lines = list(dict.fromkeys(lines))
    if mentions_math and not imports_math:
        lines.append("import math")
    if preamble.code:
        lines.append(preamble.code)
    source = "\n".join(lines)
    starts = []
    for part in parts:
        if source and part.code:
            source += "\n\n"
        starts.append(source.count("\n") + 1 if part.code else 0)
        source += part.code
    return source + "\n", tuple(starts)
