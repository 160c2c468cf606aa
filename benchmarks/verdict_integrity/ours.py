"""The sandbox of this package as a scorer."""

from __future__ import annotations

from benchmarks.verdict_integrity.forging import Job
from marl_ray.sandbox import ExecutionReport, Limits, Program, Sandbox, SandboxSettings, StdioCase, stdio_tests

LIMITS = Limits(test_cpu_s=3.0, test_wall_s=3.0, program_wall_s=9.0, max_timeouts=1, max_crashes=1, memory_mb=512)


def open_sandbox() -> Sandbox:
    """Return a sandbox at the strongest level of this machine, not started."""
    return Sandbox(SandboxSettings(limits=LIMITS))


def programs(job: Job) -> list[Program]:
    """Return the program of a job, after the program that has to be scored before it."""
    form = {"calls": "asserts", "asserts": "asserts", "script": "stdio", "unittest": "unittest"}[job["kind"]]
    if job["kind"] == "script":
        tests: str | tuple[str, ...] = stdio_tests([StdioCase(*pair) for pair in job["pairs"]])
    else:
        tests = job["suite"] if job["kind"] == "unittest" else tuple(job["asserts"])
    sources = [source for source in (job.get("before"), job["program"]) if source]
    return [Program(source, tests, job["entry"], form=form) for source in sources]  # type: ignore[arg-type]


def run(sandbox: Sandbox, job: Job) -> ExecutionReport:
    """Return the report on the program of a job."""
    return sandbox.run_batch(programs(job))[-1]
