"""Environments of the earlier protocol, in which every environment had all optional methods.

A class that defines `order`, `solved` or another optional method without the ability's class keeps working: it gets all
abilities with their defaults, also for calls of `super()`. Nothing else in the package knows the old protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import abilities

if TYPE_CHECKING:
    from marl_ray.environments.base import Executor


class OldEnvironment(
    abilities.ExecutesPrograms,
    abilities.HoldsResources,
    abilities.DecidesSolved,
    abilities.AnswersInOrder,
    abilities.AsksExpert,
    abilities.HasProbes,
    abilities.KeepsAnswers,
):
    """The optional methods of the old protocol with their defaults."""

    num_agents: int

    def order(self, task: Task) -> list[list[int]]:
        return [list(range(self.num_agents))]

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        return await sandbox.execute(programs)

    async def close(self) -> None:
        pass

    def solved(self, attempt: Any, outcome: Outcome, tests: str) -> bool:
        return abilities.all_passed(self, outcome, tests)

    def question(self: Any, task: Task, attempt: Any) -> str:
        return abilities.common_question(task, self.roles(task), self.previous_answers(attempt))

    def probes(self, attempt: Any, report: Any) -> list[Any]:
        return []


OPTIONAL = ("order", "execute", "close", "solved", "question", "probes", "probed", "probed_outcome", "previous_answers")
"""Methods that show the old protocol if no ability declares them."""
METHODS = (*OPTIONAL, "prompt_after")
"""Methods that every environment had."""
FLAGS = {
    "runs_programs": (False, abilities.WithoutPrograms),
    "interchangeable_agents": (True, abilities.InterchangeableAgents),
}
"""Class attributes with the value that is now a base class."""


class AdaptsOldClasses:
    """The base class of environments, which adapts classes of the old protocol."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        own = vars(cls)
        added: list[type] = []
        for name in OPTIONAL:
            # A class with the ability inherits the method from the ability's class.
            if name in own and not any(hasattr(base, name) for base in cls.__bases__):
                added.append(OldEnvironment)
                break
        for flag, (value, kind) in FLAGS.items():
            if own.get(flag) is value and not issubclass(cls, kind):
                added.append(kind)
        cls.__bases__ += tuple(added)

    if not TYPE_CHECKING:  # so that mypy still reports names that do not exist

        def __getattr__(self, name: str) -> Any:
            """Return the default of an optional method, for old code that calls it on any environment."""
            if name in METHODS:
                return getattr(OldEnvironment, name).__get__(self)
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
