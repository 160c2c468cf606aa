"""The request to evaluate one program against one suite of tests, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..protocol.messages import GuestLimits, Limits, SyntaxDiagnosis, TestResult
from ..suites.suite_parser import SuitePart

_OUTPUTS_PER_MEMORY = 8
"""The output of a script may take 1/8 of the memory limit, whatever the test expects: 64 MiB by default."""


@dataclass(slots=True)
class SuiteRequest:
    """One program as sent by the host, its code (see `ProgramCompiler`) and one part of its tests.

    `verdicts`: the verdicts of earlier parts. Where this part replays one of their tests, its verdict is ignored.
    """

    source: str
    code: str | None
    part: SuitePart
    limits: Limits
    stdin: str | None
    verdicts: Mapping[int, TestResult] = field(default_factory=dict)
    begin: Callable[[int], bool] = lambda number: True
    """Called with the number of each case before its evaluation; false for a case that held an earlier judge."""

    @property
    def guest_limits(self) -> GuestLimits:
        """Limits of a guest. The program can read them, so they must not depend on expected outputs."""
        limits = self.limits
        output = limits.max_output_bytes
        if self.part.suite.form == "stdio":
            output = max(output, (limits.memory_mb << 20) // _OUTPUTS_PER_MEMORY)
        cpu_s = int(2 * limits.program_wall_s) + 2
        return GuestLimits(limits.memory_mb, cpu_s, output, limits.max_reply_bytes)


@dataclass(slots=True)
class SuiteResult:
    """Verdicts on the cases of a suite, in order, with output and CPU seconds of the program."""

    verdicts: list[TestResult] = field(default_factory=list)
    syntax_error: SyntaxDiagnosis | None = None
    output: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    judge_cpu_s: float = 0.0
    """CPU seconds of a process of its own, if the suite had one."""
    timeouts: int = 0
    crashes: int = 0

    def add(self, part: SuiteResult) -> None:
        """Add the result of a part of the tests, except its verdicts."""
        self.syntax_error = part.syntax_error
        self.output += part.output
        self.cpu_s += part.cpu_s
        self.judge_cpu_s += part.judge_cpu_s
