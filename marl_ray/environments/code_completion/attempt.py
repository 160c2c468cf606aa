"""One joint action of code completion, read once: what each agent brings, and the class that it makes.

Into the class go, of each answer, the agent's own methods, with what these need of it (see `extraction`). A method that
the skeleton gives stays as it is, and so does one that another agent is to write, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.episode import Task
from marl_ray.environments.code_completion.extraction import ClassAnswer, answer_of
from marl_ray.environments.code_completion.skeleton import Skeleton, merged, skeleton_of
from marl_ray.environments.code_completion.strategies import shares
from marl_ray.environments.once import Once
from marl_ray.sandbox import Program


@dataclass(frozen=True, slots=True)
class ClassAttempt:
    """`shares` are the names of each agent's methods; `starts` says on which line of the program each method begins,
    missing ones and helper methods too."""

    responses: tuple[str, ...]
    skeleton: Skeleton
    shares: tuple[tuple[str, ...], ...]
    answers: tuple[ClassAnswer, ...]
    starts: dict[str, int]
    program: Program

    def problem(self, agent: int, method: str) -> str:
        """Why a method of the agent's does not count; empty: it is there."""
        answer = self.answers[agent]
        if method in answer.methods:
            return ""
        if method in answer.broken:
            return "does not parse"
        return "no method of that name" if self.responses[agent].strip() else "empty answer"

    @property
    def valid(self) -> int:
        """How many methods are there, each by its own agent, and parse."""
        return sum(not self.problem(agent, name) for agent, names in enumerate(self.shares) for name in names)

    @property
    def overlap(self) -> tuple[str, ...]:
        """The methods that more than one agent wrote."""
        names = [slot.name for slot in self.skeleton.slots]
        return tuple(name for name in names if sum(name in answer.methods for answer in self.answers) > 1)

    def foreign(self, agent: int) -> tuple[str, ...]:
        """The methods that the agent wrote and that are another's."""
        written = self.answers[agent].methods
        return tuple(s.name for s in self.skeleton.slots if s.name in written and s.name not in self.shares[agent])


class ClassReader:
    """Makes attempts, and reads equal texts once, as long as an attempt that holds them is alive."""

    def __init__(self, strategy: str, num_agents: int) -> None:
        self._strategy = strategy
        self._num_agents = num_agents
        self._once = Once()

    def shares(self, task: Task) -> tuple[tuple[str, ...], ...]:
        """The names of each agent's methods."""
        return shares(self._strategy, _skeleton(task).slots, self._num_agents)

    def attempt(self, task: Task, responses: Sequence[str], visible: int | None) -> ClassAttempt:
        """The attempt. `visible`: the tests that feedback will tell of, as in `Program`."""
        skeleton, owned = _skeleton(task), self.shares(task)
        answers = tuple(self._once(answer_of, response, skeleton.class_name) for response in responses)
        source, starts = _joined(skeleton, owned, answers)
        program = Program(source, task.fields["tests"], skeleton.class_name, visible=visible)
        return ClassAttempt(tuple(responses), skeleton, owned, answers, starts, program)


def _skeleton(task: Task) -> Skeleton:
    fields = task.fields
    return skeleton_of(task.prompt, fields["class_name"], fields["methods"], fields["lengths"])


def _joined(
    skeleton: Skeleton, owned: Sequence[Sequence[str]], answers: Sequence[ClassAnswer]
) -> tuple[str, dict[str, int]]:
    """The program, and where each method begins in it. Of two helper methods of one name the first is taken."""
    decorators = {slot.name: slot.decorators for slot in skeleton.slots}
    future: dict[str, None] = {}
    imports: dict[str, None] = {}
    methods: dict[str, str] = {}
    for names, answer in zip(owned, answers, strict=True):
        taken = answer.with_helpers(names, skeleton.members)
        if not taken:
            continue
        future |= dict.fromkeys(answer.imports_of(taken.values(), future=True))
        imports |= dict.fromkeys(answer.imports_of(taken.values(), future=False))
        for name, method in taken.items():
            methods.setdefault(name, method.code(skeleton.indent, decorators.get(name, ())))
    return merged(skeleton, [line for line in future if line not in skeleton.lines], imports, methods)
