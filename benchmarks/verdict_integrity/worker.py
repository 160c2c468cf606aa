"""A process that scores jobs with one scorer; `jail.py` starts it in a jail, in the virtual environment of the scorer.

Usage: `python -m benchmarks.verdict_integrity.worker SCORER`. Jobs arrive as lines of JSON (see `forging.py`). Results
leave as lines of JSON: the score (see `scorers.py`) and the seconds, or "lost" if the process that called the scorer
ended or did not answer. Each job runs in a fork of this process.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import sys
import time
from typing import Any

from benchmarks.verdict_integrity.scorers import SCORERS, Job, Score

DEADLINE = 25.0


def score_in_fork(score: Score, job: Job) -> list[Any]:
    """Return result and seconds of one job, scored in a fork of this process with a process group of its own."""
    mark = secrets.token_hex(8)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, write)
        os.closerange(write + 1, 256)
        os.chdir("/tmp")
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
        if job.get("before"):
            with contextlib.suppress(Exception):
                score({**job, "program": job["before"]})
        clock = time.perf_counter
        started = clock()
        result = score(job)
        os.write(write, f"\n{mark} {[result, clock() - started]!r}\n".encode())  # programs may have patched json
        os._exit(0)
    os.close(write)
    data = _read(read, mark, time.monotonic() + DEADLINE)
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    lines = [line for line in data.decode(errors="replace").split("\n") if line.startswith(mark)]
    return ast.literal_eval(lines[-1].removeprefix(mark).strip()) if lines else ["lost", DEADLINE]


def _read(descriptor: int, mark: str, deadline: float) -> bytes:
    """Return everything that arrives before the marked line, the end of file or the deadline."""
    data, ending = b"", None
    while ending is None or not ending.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        part = os.read(descriptor, 65536)
        if not part:
            break
        data += part
        ending = data.partition(mark.encode())[2] or None
    return data


def clean() -> None:
    """Remove the files that a job left in the jail."""
    for folder in ("/tmp", "/dev/shm"):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


def main() -> None:
    score = SCORERS[sys.argv[1]]()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    print("ready", json.dumps("ready"), file=output, flush=True)
    for line in sys.stdin:
        try:
            job = json.loads(line)
        except ValueError:
            continue  # a hostile program wrote to the descriptors of this process
        print(job["mark"], json.dumps(score_in_fork(score, job)), file=output, flush=True)
        clean()


if __name__ == "__main__":
    main()
