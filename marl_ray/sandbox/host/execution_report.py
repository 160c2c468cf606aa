"""The sandbox's report on one program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.sandbox.host.program import Program
from marl_ray.sandbox.inside.protocol.records import Status, SyntaxDiagnosis, TestResult
from marl_ray.sandbox.inside.suites.parser import parse_tests


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """The verdicts on one program, in the order of its tests."""

    tests: tuple[TestResult, ...]
    syntax_error: SyntaxDiagnosis | None
    stdout: str
    cpu_s: float
    """CPU seconds of the program itself."""
    wall_s: float
    isolation: str
    """The level of the sandbox."""
    trusted: bool
    """False if any verdict is untrusted, because the program could have forged it: the test ran in a process of the
    program (unittest classes, tests that pass functions to the program, level `none`) or compared the program's own
    objects with each other."""
    infra_error: str | None = None
    """Set if the sandbox failed, not the program; `tests` then carry no information about the program."""

    @property
    def passed(self) -> int:
        return sum(test.status == "pass" for test in self.tests)

    @property
    def trusted_passed(self) -> int:
        """Number of passes that cannot have been forged."""
        return sum(test.status == "pass" and test.trusted for test in self.tests)

    @property
    def total(self) -> int:
        return len(self.tests)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the keys of `marl-ray sandbox run`; `infra_error` only if set."""
        data: dict[str, Any] = {
            "isolation": self.isolation,
            "trusted": self.trusted,
            "syntax_error": None if self.syntax_error is None else self.syntax_error.to_dict(),
            "tests": [test.to_dict() for test in self.tests],
            "passed": self.passed,
            "total": self.total,
            "stdout": self.stdout,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
        }
        if self.infra_error is not None:
            data["infra_error"] = self.infra_error
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExecutionReport:
        """Read the output of `to_dict`; `passed` and `total` are computed, not read."""
        syntax = data["syntax_error"]
        return cls(
            tests=tuple(TestResult(**test) for test in data["tests"]),
            syntax_error=None if syntax is None else SyntaxDiagnosis(**syntax),
            stdout=data["stdout"],
            cpu_s=data["cpu_s"],
            wall_s=data["wall_s"],
            isolation=data["isolation"],
            trusted=data["trusted"],
            infra_error=data.get("infra_error"),
        )


def failed_report(
    program: Program,
    isolation: str,
    *,
    status: Status = "error",
    error_type: str | None = None,
    message: str | None = None,
    infra_error: str | None = None,
    wall_s: float = 0.0,
) -> ExecutionReport:
    """Return a report with the same verdict on every test, for a program that no judge could evaluate."""
    try:
        sources = [case.source for case in parse_tests(program.tests, program.entry_point, program.form).cases]
    except ValueError:
        sources = []
    tests = tuple(TestResult(status, error_type, message, None, source) for source in sources)
    return ExecutionReport(tests, None, "", 0.0, wall_s, isolation, True, infra_error)
