"""A running zygote and judge, as the owner holds them: descriptors, deadlines, and the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import weakref
from typing import Any

from marl_ray.sandbox.host.spawn import LaunchSpec, ZygoteProcess, spawn
from marl_ray.sandbox.inside.protocol import frames

_MAX_REPORT = 64 << 20


class SandboxFailure(Exception):
    """The sandbox did not answer, or not in time (`stuck`), or has no guest to give (`infra`)."""

    def __init__(self, message: str, *, stuck: bool = False, infra: bool = False) -> None:
        super().__init__(message)
        self.stuck = stuck
        self.infra = infra


class SandboxConnection:
    """A running zygote and judge, and the owner's ends of what ties it to them."""

    def __init__(self, launch: LaunchSpec) -> None:
        self._socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._reader = frames.FrameReader(self, _MAX_REPORT)
        self._deadline = 0.0
        try:
            self._spawned = spawn(launch, theirs.fileno(), lifeline)
        except OSError:
            self._socket.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.stop = weakref.finalize(self, _stop, self._spawned, self._socket, self._lifeline)

    def send(self, data: bytes, deadline: float) -> None:
        try:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            self._socket.sendall(data)
        except TimeoutError:
            raise SandboxFailure("the sandbox does not take programs", stuck=True) from None
        except OSError:
            raise SandboxFailure(self._last_words()) from None

    def receive(self, deadline: float) -> Any:
        """The next message. Raises SandboxFailure when it is not there in time, or never will be."""
        self._deadline = deadline
        try:
            return self._reader.message()
        except frames.FrameTooLong:
            raise SandboxFailure("the sandbox sent an oversized report") from None
        except frames.ConnectionClosed:
            raise SandboxFailure(self._last_words()) from None

    def recv(self, size: int, /) -> bytes:
        """For the reader: some bytes before the deadline, none at the end of the stream. Raises SandboxFailure."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SandboxFailure("the sandbox does not answer", stuck=True)
        self._socket.settimeout(left)
        try:
            return self._socket.recv(size)
        except TimeoutError:
            raise SandboxFailure("the sandbox does not answer", stuck=True) from None
        except OSError:
            return b""

    def _last_words(self) -> str:
        """What a zygote that has ended wrote before it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._spawned.process.wait(0.5)
        return self._spawned.error_text() or "the sandbox ended without a word"


def _stop(spawned: ZygoteProcess, connection: socket.socket, lifeline: int) -> None:
    """End every process behind a connection: by the lifeline, and by force."""
    connection.close()
    os.close(lifeline)
    process = spawned.process
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    spawned.errors.close()
