"""One joint action of code generation, read once: what each response brings, the joint program, the use of helpers.

The joint program is, in this order: the problem's imports and finished definitions, each helper, main; of each
answer only the function that was asked for, with the imports it mentions (see `extraction`). A function that mentions
`math` finds it, imported by an agent or not, as in CoMLRL's programs. Nothing else is added, but for tasks whose
program is a script, which reads standard input and prints: there main is called at the end.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation.extraction import Contribution, contribution, preamble
from marl_ray.environments.code_generation.usage import HelperUse, helper_use
from marl_ray.environments.once import Once
from marl_ray.sandbox import Program


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Answer:
    """One response, read. `use` is what main makes of the helpers; of a helper, nothing."""

    part: Contribution
    use: HelperUse


@dataclass(frozen=True, slots=True)
class CodeAttempt:
    """`answers` are one an agent, main's last; `starts` says on which line of the program each one's code starts
    (0 when it contributes none); `given` is what the problem itself brings; `call` is how a script ends."""

    responses: tuple[str, ...]
    given: Contribution
    answers: tuple[Answer, ...]
    starts: tuple[int, ...]
    program: Program
    call: str = ""

    @property
    def parts(self) -> list[Contribution]:
        return [answer.part for answer in self.answers]

    @property
    def use(self) -> HelperUse:
        """How main uses the helpers."""
        return self.answers[-1].use

    def changed(self, change: str) -> Program:
        """The joint program with a statement more, before anything is called."""
        source = f"{self.program.source.removesuffix(self.call)}\n\n{change}\n{self.call}"
        return replace(self.program, source=source, visible=None)


class CodeReader:
    """Makes attempts, and reads equal texts once, as long as an attempt that holds them is alive."""

    def __init__(self) -> None:
        self._once = Once()

    def attempt(
        self, task: Task, responses: Sequence[str], helpers: tuple[str, ...], visible: int | None
    ) -> CodeAttempt:
        """The attempt. `visible`: the tests that feedback will tell of, as in `Program`."""
        entry_point = task.fields["entry_point"]
        names = (*helpers, entry_point)
        usable = (*((),) * len(helpers), helpers)
        script = is_script(task)
        given = self._once(preamble, task.prompt, frozenset(names))
        read = [_answer] * len(helpers) + [_printing_answer if script else _answer]
        answers = tuple(self._once(*texts) for texts in zip(read, responses, names, usable, strict=True))
        source, starts = _joined(given, [answer.part for answer in answers])
        call = f"\n\n{entry_point}()\n" if script else ""
        program = Program(source + call, task.fields["tests"], entry_point, prompt=task.prompt, visible=visible)
        return CodeAttempt(tuple(responses), given, answers, starts, program, call)


def is_script(task: Task) -> bool:
    """Whether its program reads standard input and prints, so that main takes and returns nothing."""
    return bool(task.fields.get("script"))


def _answer(response: str, name: str, helpers: tuple[str, ...]) -> Answer:
    part = contribution(response, name)
    return Answer(part, helper_use(part, helpers) if helpers else HelperUse())


def _printing_answer(response: str, name: str, helpers: tuple[str, ...]) -> Answer:
    """One response that is asked for a function which prints what another would return."""
    part = contribution(response, name)
    if part.exists:
        part = replace(part, problem="")
    return Answer(part, helper_use(_returning(part), helpers) if helpers else HelperUse())


def _returning(part: Contribution) -> Contribution:
    """The same with `return x` for a `print(x)` at the end, so that the use of helpers means what it always means."""
    if part.function is None:
        return part
    *before, last = part.function.body
    match last:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[ast.expr() as value], keywords=[])):
            function = copy.copy(part.function)
            function.body = [*before, ast.copy_location(ast.Return(value), last)]
            return replace(part, function=function)
    return part


def _joined(given: Contribution, parts: Sequence[Contribution]) -> tuple[str, tuple[int, ...]]:
    """The joint program and where each part starts in it."""
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
