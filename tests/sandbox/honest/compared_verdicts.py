"""Verdicts of plain CPython and of the sandbox on honest programs, in comparable form."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from marl_ray.sandbox import ExecutionReport
from tests.sandbox.honest.program_set import HonestProgram

REFERENCE_RUNNER = Path(__file__).with_name("cpython_reference.py")


@functools.cache
def cpython_verdicts(honest: HonestProgram) -> list[str]:
    """Return the verdicts of CPython, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(honest.job()))
        done = subprocess.run(
            [sys.executable, str(REFERENCE_RUNNER), str(job)],
            capture_output=True,
            env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"},
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))


def sandbox_verdicts(report: ExecutionReport) -> list[str]:
    return [f"error:{test.error_type}" if test.status == "error" else str(test.status) for test in report.tests]
