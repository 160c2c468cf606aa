"""What an environment found out about one joint action, as facts: the external modes put them into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from marl_ray.sandbox import TestResult

SandboxSlice = int | Literal["all"] | None


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """One agent's function. `problem` says why it does not count; empty: it is there and returns a value."""

    name: str
    problem: str = ""

    @property
    def found(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """A syntax error of the joint program. `line` counts in `function`'s own code where that is known."""

    function: str | None
    line: int | None
    column: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What feedback may say about one joint action.

    `functions` has one status per agent, main last. `tests` are the verdicts that feedback may see, already
    cut by `sandbox_slice`. The last three speak of main: helpers it does not call, whether it only passes a
    helper's result on, and whether it throws a helper's result away.
    """

    functions: tuple[FunctionStatus, ...]
    syntax: SyntaxProblem | None
    tests: tuple[TestResult, ...]
    not_called: tuple[str, ...] = ()
    thin_wrapper: bool = False
    aux_misused: bool = False

    @property
    def main(self) -> FunctionStatus:
        return self.functions[-1]

    @property
    def helpers(self) -> tuple[FunctionStatus, ...]:
        return self.functions[:-1]

    @property
    def passed(self) -> int:
        """How many of the visible tests passed."""
        return sum(test.status == "pass" for test in self.tests)

    @property
    def all_passed(self) -> bool:
        """Syntax, main and every visible test, of which there is at least one."""
        return self.syntax is None and self.main.found and 0 < len(self.tests) == self.passed


def sliced(tests: Sequence[TestResult], sandbox_slice: SandboxSlice) -> tuple[TestResult, ...]:
    """The verdicts that feedback may see: first N; last N when negative; 0, None or "all": every one."""
    if not sandbox_slice or sandbox_slice == "all":
        return tuple(tests)
    return tuple(tests[:sandbox_slice] if sandbox_slice > 0 else tests[sandbox_slice:])
