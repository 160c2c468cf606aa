"""A parsed joint action of code completion: the methods in the responses, and the merged class.

Of each response the class contains the agent's own methods, with the helper methods and imports that they need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation.extraction import strip_fence
from marl_ray.plugins.code_completion.extraction import ClassAnswer, extract_methods
from marl_ray.plugins.code_completion.skeleton import Skeleton, assign_methods, merge_methods, parse_skeleton
from marl_ray.sandbox import Program


@dataclass(frozen=True, slots=True)
class ClassAttempt:
    """A parsed joint action. `shares` are the names of each agent's methods; `starts` are the lines of the program on
    which methods start, including missing ones and helper methods."""

    responses: tuple[str, ...]
    skeleton: Skeleton
    shares: tuple[tuple[str, ...], ...]
    parsed: tuple[ClassAnswer, ...]
    starts: dict[str, int]
    program: Program

    @property
    def answers(self) -> list[str]:
        """Each whole response, including methods that the class does not contain."""
        return [strip_fence(response) for response in self.responses]

    def problem(self, agent: int, method: str) -> str:
        """Return why a method of the agent does not count, empty if it counts."""
        answer = self.parsed[agent]
        if method in answer.methods:
            return ""
        if method in answer.broken:
            return "does not parse"
        if not self.responses[agent].strip():
            return "empty answer"
        return "no method of that name"

    @property
    def valid(self) -> int:
        """Number of methods that parse and come from their own agent."""
        count = 0
        for agent, names in enumerate(self.shares):
            for name in names:
                count += not self.problem(agent, name)
        return count

    @property
    def overlap(self) -> list[str]:
        """The methods that more than one agent wrote."""
        writers: Counter[str] = Counter()
        for answer in self.parsed:
            writers.update(answer.methods.keys())
        return [name for name in self.skeleton.names if writers[name] > 1]

    def foreign(self, agent: int) -> list[str]:
        """Return the methods that the agent wrote for another agent."""
        foreign = self.parsed[agent].methods.keys() - self.shares[agent]
        return [name for name in self.skeleton.names if name in foreign]


def shares_of(task: Task, strategy: str, num_agents: int) -> tuple[tuple[str, ...], ...]:
    return assign_methods(strategy, _skeleton(task).slots, num_agents)


def class_attempt(
    task: Task, responses: Sequence[str], shares: tuple[tuple[str, ...], ...], visible: int | None
) -> ClassAttempt:
    """Parse a joint action. `visible` are the tests that feedback may mention, as in `Program`."""
    skeleton = _skeleton(task)
    answers = []
    for response in responses:
        answers.append(_cached_methods(response, skeleton.class_name))
    source, starts = _merge(skeleton, shares, answers)
    program = Program(source, task.fields["tests"], skeleton.class_name, visible=visible)
    return ClassAttempt(tuple(responses), skeleton, shares, tuple(answers), starts, program)


_cached_methods = lru_cache(maxsize=256)(extract_methods)
"""In joint mode `cross` each response is part of many joint actions of its node."""


def _skeleton(task: Task) -> Skeleton:
    fields = task.fields
    return parse_skeleton(task.prompt, fields["class_name"], fields["methods"], fields["lengths"])


def _merge(
    skeleton: Skeleton, owned: Sequence[Sequence[str]], answers: Sequence[ClassAnswer]
) -> tuple[str, dict[str, int]]:
    """Return the program, and the line on which each method starts. The first of two equal helper methods is used."""
    decorators = {}
    for slot in skeleton.slots:
        decorators[slot.name] = slot.decorators
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
    for line in skeleton.lines:
        future.pop(line, None)  # the skeleton has it already
    return merge_methods(skeleton, future, imports, methods)
