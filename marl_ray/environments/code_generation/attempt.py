"""One joint action of code generation, read once: what each response brings, the joint program, the use of helpers.

The joint program is, in this order: the problem's imports and finished definitions, each helper, main; of each
answer only the function that was asked for, with the imports it mentions (see `extraction`). A function that mentions
`math` finds it, imported by an agent or not, as in CoMLRL's programs; nothing else is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.tree import Task
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
    (0 when it contributes none); `given` is what the problem itself brings."""

    responses: tuple[str, ...]
    given: Contribution
    answers: tuple[Answer, ...]
    starts: tuple[int, ...]
    program: Program

    @property
    def parts(self) -> list[Contribution]:
        return [answer.part for answer in self.answers]

    @property
    def use(self) -> HelperUse:
        """How main uses the helpers."""
        return self.answers[-1].use


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
        given = self._once(preamble, task.prompt, frozenset(names))
        answers = tuple(self._once(_answer, *texts) for texts in zip(responses, names, usable, strict=True))
        source, starts = _joined(given, [answer.part for answer in answers])
        program = Program(source, task.fields["tests"], entry_point, prompt=task.prompt, visible=visible)
        return CodeAttempt(tuple(responses), given, answers, starts, program)


def _answer(response: str, name: str, helpers: tuple[str, ...]) -> Answer:
    part = contribution(response, name)
    return Answer(part, helper_use(part, helpers) if helpers else HelperUse())


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
