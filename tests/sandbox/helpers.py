"""Helpers shared by the sandbox tests."""

from __future__ import annotations

from marl_ray.sandbox import ExecutionReport, Limits, Program, Sandbox

SHORT_LIMITS = Limits(test_cpu_s=2.0, test_wall_s=2.0, program_wall_s=10.0)


def statuses(report: ExecutionReport) -> list[str]:
    """Return the status of every test in a report."""
    return [test.status for test in report.tests]


def run_asserts(
    sandbox: Sandbox,
    source: str,
    *tests: str,
    entry_point: str = "f",
    prompt: str = "",
    limits: Limits | None = SHORT_LIMITS,
) -> ExecutionReport:
    """Run a program against assert tests, each of at most 2 CPU seconds by default."""
    return sandbox.run(Program(source, tests, entry_point, prompt=prompt, limits=limits))
