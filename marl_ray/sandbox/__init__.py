"""Untrusted code in, `ExecutionReport` out. Knows nothing of reinforcement learning.

`Sandbox` runs programs in this process's care; `marl_ray.sandbox.ray_pool.SandboxPool` does so on a Ray
cluster and is the only module here that imports Ray.
"""

from .owner import Sandbox, SandboxSettings, SandboxUnavailable
from .report import (
    ExecutionReport,
    Limits,
    Program,
    StdioCase,
    SyntaxDiagnosis,
    TestResult,
    count_tests,
    failed_report,
    stdio_tests,
)

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
