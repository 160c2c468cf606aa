"""Untrusted code in, `ExecutionReport` out. Knows nothing of reinforcement learning, and imports nothing of it.

`owner` runs in the caller's process, `inside` behind the wall, where each folder is a process (see there). `cli`,
`doctor` and `bench` are commands of the caller.
"""

from marl_ray.sandbox.host.execution_report import ExecutionReport, failed_report
from marl_ray.sandbox.host.isolation_settings import SandboxSettings, SandboxUnavailable
from marl_ray.sandbox.host.program import Program, StdioCase, count_tests, stdio_tests
from marl_ray.sandbox.host.sandbox import Sandbox
from marl_ray.sandbox.inside.protocol.records import Limits, SyntaxDiagnosis, TestResult

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
]
