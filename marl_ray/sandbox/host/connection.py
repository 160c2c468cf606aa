"""A running zygote and judge as seen by the host process: start, messages with deadlines, end.

The isolated processes are started by exec with a constant environment and two inherited descriptors, so they hold nothing
of the host process (API keys in the environment, memory, open files).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from typing import IO, Any

from marl_ray.sandbox.host.isolation_levels import LaunchSpec
from marl_ray.sandbox.inside.protocol import messages

_MAX_REPORT = 64 << 20


class SandboxFailure(Exception):
    """The isolated processes died, did not answer in time (`timed_out`), or cannot fork guests (`infrastructure`)."""

    def __init__(self, message: str, *, timed_out: bool = False, infrastructure: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.infrastructure = infrastructure


class SandboxConnection:
    """A running zygote and judge, the socket to the judge and the lifeline of the zygote.

    Raises OSError if the zygote cannot be started. `stop` ends all processes; garbage collection does the same.
    """

    def __init__(self, spec: LaunchSpec) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - standard error of bubblewrap and the zygote
        self._socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._reader = messages.FrameReader(self._receive, _MAX_REPORT)
        self._deadline = 0.0
        try:
            self.process = subprocess.Popen(
                [*spec.command, str(theirs.fileno()), str(lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=spec.environment,
                cwd="/",
                close_fds=True,
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,
            )
        except OSError:
            self._socket.close()
            os.close(self._lifeline)
            self._errors.close()
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.stop = weakref.finalize(self, _stop, self.process, self._errors, self._socket, self._lifeline)

    def send(self, data: bytes, deadline: float) -> None:
        """Send a frame before the deadline (`time.monotonic`). Raises SandboxFailure."""
        try:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            self._socket.sendall(data)
        except TimeoutError:
            raise SandboxFailure("the sandbox does not take programs", timed_out=True) from None
        except OSError:
            raise SandboxFailure(self._last_error()) from None

    def receive(self, deadline: float) -> Any:
        """Return the next message. Raises SandboxFailure at the deadline and when the processes have ended."""
        self._deadline = deadline
        try:
            return self._reader.message()
        except messages.FrameTooLong:
            raise SandboxFailure("the sandbox sent an oversized report") from None
        except messages.ConnectionClosed:
            raise SandboxFailure(self._last_error()) from None

    def _receive(self, size: int) -> bytes:
        """Return some bytes for the frame reader before the deadline; none at the end of the stream."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise SandboxFailure("the sandbox does not answer", timed_out=True)
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(size)
        except TimeoutError:
            raise SandboxFailure("the sandbox does not answer", timed_out=True) from None
        except OSError:
            return b""

    def _last_error(self) -> str:
        """Return the last line that a zygote wrote to standard error before it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.5)
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode("utf-8", "replace").strip().splitlines()
        return (lines[-1].strip() if lines else "") or "the sandbox ended without an error message"


def _stop(process: subprocess.Popen[bytes], errors: IO[bytes], connection: socket.socket, lifeline: int) -> None:
    """End every process behind a connection: through the lifeline, and by force."""
    connection.close()
    os.close(lifeline)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    errors.close()
