"""A jail for scorers that execute hostile programs: bubblewrap without network, with files in memory only."""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.verdict_integrity.forging import Job

_PACKAGE = Path(__file__).parent
_MODULE = "benchmarks.verdict_integrity.worker"
_FILES = ("__init__.py", "scorers.py", "worker.py")
_VISIBLE = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")
_START_S = 300.0
_JOB_S = 40.0


class Jail:
    """A worker with one scorer in a jail. A worker that does not answer is replaced, and its job is "lost"."""

    def __init__(self, scorer: str, python: str = sys.executable) -> None:
        self.scorer = scorer
        self.python = python
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def score(self, job: Job) -> tuple[Any, float]:
        """Return the result of one job and its seconds. Raises RuntimeError if the worker does not start."""
        if self._process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "errors": "replace"}
            self._process = subprocess.Popen(self._command(), **pipes)  # type: ignore[call-overload]
            if self._answer(self._process, "ready", _START_S) != "ready":
                raise RuntimeError(f"the worker of {self.scorer} did not start; run its command for the reason")
        assert self._process.stdin is not None
        mark = secrets.token_hex(8)
        self._process.stdin.write(json.dumps(job | {"mark": mark}) + "\n")
        self._process.stdin.flush()
        answer = self._answer(self._process, mark, _JOB_S)
        if answer is None:
            self.close()
            return "lost", _JOB_S
        return answer[0], answer[1]

    def close(self) -> None:
        """End the jail with all its processes."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _answer(self, process: subprocess.Popen[str], mark: str, seconds: float) -> Any:
        """Return the answer behind a mark, None at the deadline. Hostile programs may write other lines."""
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = process.stdout.readline()
            if mark in line:
                return json.loads(line.partition(mark)[2]) if line else None
        return None

    def _command(self) -> Sequence[str]:
        prefixes = {os.path.realpath(sys.base_prefix), str(Path(self.python).parent.parent)}
        command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--die-with-parent"]
        command += ["--new-session", "--clearenv", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        for path in (*_VISIBLE, *sorted(prefixes), *(str(_PACKAGE / name) for name in _FILES)):
            if os.path.exists(path):
                command += ["--ro-bind", path, path]
        path = f"{Path(self.python).parent}:/usr/bin:/bin"
        for name, value in (("PATH", path), ("HOME", "/tmp/home"), ("PYTHONPATH", str(_PACKAGE.parents[1]))):
            command += ["--setenv", name, value]
        return ["prlimit", f"--as={16 << 30}", *command, self.python, "-m", _MODULE, self.scorer]
