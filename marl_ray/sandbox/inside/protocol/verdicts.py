"""What the judge says of a program, test by test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "error", "timeout", "crash", "skipped"]
"""`fail`: a test's own assertion did not hold. `error`: an exception. `timeout`: the CPU or wall limit of the
test. `crash`: the guest process died or broke the protocol. `skipped`: the program's budget was used up."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The verdict on one test. `line` is a line of the program; `source` is the test's own text.

    `trusted` is False when the program had a say in the verdict beyond its data: see `ExecutionReport`.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    status: Status
    error_type: str | None = None
    message: str | None = None
    line: int | None = None
    source: str = ""
    trusted: bool = True

    def for_test(self, source: str, *, trustworthy: bool) -> TestResult:
        """This verdict, on the test with this text."""
        trusted = self.trusted and trustworthy
        return TestResult(self.status, self.error_type, self.message, self.line, source, trusted)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the arguments by name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class SyntaxDiagnosis:
    """Why and where a program does not parse; `line` and `column` count from 1."""

    message: str
    line: int | None
    column: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the arguments by name."""
        return {name: getattr(self, name) for name in self.__slots__}
