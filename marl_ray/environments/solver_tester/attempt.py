"""One joint action of solver and test writers, read once, and what of it is executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.episode import Task
from marl_ray.environments.code_generation.attempt import CodeAttempt, CodeReader
from marl_ray.environments.code_generation.extraction import Contribution, clean
from marl_ray.environments.solver_tester.written import written_tests
from marl_ray.sandbox import Program


@dataclass(frozen=True, slots=True)
class SolutionAttempt:
    """`written` are the tests of each writer. `program` has several: the solution against the problem's own tests, then
    for each writer with tests two, the solution and the reference against these. No two writers share an execution, and
    nothing of the problem's tests is in one with a writer's.
    """

    responses: tuple[str, ...]
    solution: CodeAttempt
    written: tuple[tuple[str, ...], ...]
    program: tuple[Program, ...]

    @property
    def part(self) -> Contribution:
        """The solver's function."""
        return self.solution.parts[0]

    @property
    def answers(self) -> list[str]:
        """Each agent's own answer as it was understood; all it wrote where it was not."""
        tests = ["\n".join(own) or clean(text) for own, text in zip(self.written, self.responses, strict=False)]
        return [*tests, self.part.code or clean(self.responses[-1])]


def solution_attempt(reader: CodeReader, task: Task, responses: Sequence[str], visible: int | None) -> SolutionAttempt:
    """The attempt; the last response is the solver's. `visible`: as in `Program`, of the problem's own tests."""
    function, reference = task.fields["entry_point"], task.fields["reference"]
    solution = reader.attempt(task, responses[-1:], (), visible)
    written = tuple(written_tests(text, function) for text in responses[:-1])
    both = (
        Program(source, tests, function, prompt=task.prompt, form="asserts")
        for tests in written
        if tests
        for source in (solution.program.source, reference)
    )
    return SolutionAttempt(tuple(responses), solution, written, (solution.program, *both))
