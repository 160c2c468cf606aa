"""Execution of untrusted Python programs: `Program` in, `ExecutionReport` out. Imports no other package of marl_ray.

`host` runs in the caller's process; `inside` holds the isolated processes, one folder per process. `__main__`, `doctor`
and `bench` are the commands of `marl-ray sandbox`.
"""

from marl_ray.sandbox.host.isolation_levels import SandboxSettings, SandboxUnavailable
from marl_ray.sandbox.host.program import ExecutionReport, Program, StdioCase, count_tests, failed_report, stdio_tests
from marl_ray.sandbox.host.sandbox import Sandbox
from marl_ray.sandbox.inside.protocol.messages import Limits, SyntaxDiagnosis, TestResult
from marl_ray.sandbox.inside.suites.statements import syntax_tree

__all__ = [
    "ExecutionReport",
    "Limits",
    "Program",
    "Sandbox",
    "SandboxSettings",
    "SandboxUnavailable",
    "StdioCase",
    "SyntaxDiagnosis",
    "TestResult",
    "count_tests",
    "failed_report",
    "stdio_tests",
    "syntax_tree",
]
