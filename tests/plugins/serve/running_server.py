"""A real server of two toy agents, in a process of its own."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.factories import ROOT

START_S = 600


@dataclass(frozen=True)
class RunningServer:
    """The address of a server, and its process."""

    address: str
    process: subprocess.Popen[str]
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=START_S)


@contextmanager
def running_server(run: Path, log: Path, *arguments: str) -> Iterator[RunningServer]:
    """Start `marl-ray serve` on a free port, yield it as soon as it answers, and stop it."""
    command = [sys.executable, "-m", "marl_ray", "serve", str(run), "--port", "0", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment, cwd=ROOT, start_new_session=True
        )
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    try:
        line = lines.get(timeout=START_S)
        assert " at http://" in line, log.read_text()
        yield RunningServer(line.rpartition(" at ")[2].strip(), process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
