"""A bug fix task with patches and reports, shared by the tests of this package."""

from __future__ import annotations

from typing import Any

from marl_ray.core.episode import Task
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis, TestResult

BUGGY = "def half(n):\n    return n / 2\n\n\ndef f(x):\n    y = half(x)\n\n    return y - 1"
FIXED = BUGGY.replace("n / 2", "n // 2").replace("y - 1", "y + 1")
PATCH = "def f(x):\n    y = half(x)\n\n    return y + 1"
ROWS = "def f(x):\n    y = x // 2\n    y = y + 0\n    return y + 1"
RIGHT, WRONG = "line: 8\nwhy: sign", "line: 1\nwhy: name"
TESTS = ("assert f(0) == 1", "assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 2")


def task(buggy: str = BUGGY, reference: str = FIXED) -> Task:
    return Task(
        "t/1", "Half of x, plus 1.", {"entry_point": "f", "tests": TESTS, "buggy": buggy, "reference": reference}
    )


def report(results: str, syntax: SyntaxDiagnosis | None = None, trusted: bool = True) -> ExecutionReport:
    """Return a report with one result per test: `+` is a pass, `-` a failure, `t` a timeout."""
    kinds: dict[str, Any] = {"+": "pass", "-": "fail", "t": "timeout"}
    tests = tuple(TestResult(kinds[r], None, None, None, s, trusted) for r, s in zip(results, TESTS, strict=True))
    return ExecutionReport(tests, syntax, "", 0.0, 0.0, "none", trusted)
