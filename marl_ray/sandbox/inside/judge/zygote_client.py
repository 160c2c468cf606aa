"""The judge's line to the zygote: guests are asked for, prepared ahead, and buried."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..isolation.process import anonymous_file
from ..protocol.frames import FORK_REPLY, FORK_REQUEST, GuestLimits


def explained(status: int) -> str:
    """How a process had ended, in words, from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {known.value: known.name for known in signal.Signals}  # most real-time signals have no name
        return f"the process was killed by {names.get(number, f'signal {number}')}"
    return f"the process ended with exit status {os.WEXITSTATUS(status)}"


_Answered = Callable[[int, int, float], None]


class ZygoteError(BaseException):
    """The zygote cannot fork or is gone. Not the program's fault."""


@dataclass(slots=True)
class GuestProcess:
    """A guest as the judge holds it. `pid` is 0 until the zygote has answered, negative when it could not fork."""

    pid: int
    connection: socket.socket
    output: int
    resources: GuestLimits

    def release(self) -> None:
        self.connection.close()
        os.close(self.output)


class ZygoteClient:
    """Asks the zygote for guests. Requests are answered in order; answers are only waited for when needed.

    `tidy`: guests may leave something behind, so no other one begins before a burial is over.
    """

    def __init__(self, link: socket.socket, tidy: bool = False) -> None:
        self._link = link
        self._tidy = tidy
        self._expected: deque[_Answered] = deque()
        self._spare: GuestProcess | None = None

    def fork(self, resources: GuestLimits, *streams: int) -> GuestProcess:
        """A guest that waits for its program: the spare one, when that fits. Raises ZygoteError when there is none.

        `streams`: its standard input, and its standard error if that is not to go where its output goes.
        """
        guest, self._spare = self._spare, None
        if guest is not None and (streams or guest.resources != resources):
            self.bury(guest)
            guest = None
        if guest is None:
            guest = self._request(resources, *streams)
        self._await_pid(guest)
        if guest.pid < 0:
            guest.release()
            raise ZygoteError(f"the zygote cannot fork: {os.strerror(-guest.pid)}")
        return guest

    def prepare_spare(self, resources: GuestLimits) -> None:
        """Have the next guest forked while this one works."""
        if self._spare is None:
            self._spare = self._request(resources)

    def bury(self, guest: GuestProcess) -> None:
        """Have a guest killed and reaped, without waiting for it unless that is to be tidy."""
        self._await_pid(guest)
        if guest.pid > 0 and self._tidy:
            self.bury_and_wait(guest)
        elif guest.pid > 0:
            # Not closed before it is dead: it would wake up to the end of its connection.
            self._ask(FORK_REQUEST.pack(b"K", guest.pid, 0, 0, 0), (), lambda pid, status, cpu_s: guest.release())
        else:
            guest.release()

    def bury_and_wait(self, guest: GuestProcess) -> int:
        """As `bury`, but wait; gives how the guest had ended, as `waitpid` does."""
        ended: list[int] = []
        request = FORK_REQUEST.pack(b"K", guest.pid, 0, 0, 0)
        self._ask(request, (), lambda pid, status, cpu_s: ended.append(status))
        while not ended:
            self._receive()
        guest.release()
        return ended[0]

    def _request(self, resources: GuestLimits, *streams: int) -> GuestProcess:
        ours, theirs = socket.socketpair()
        guest = GuestProcess(0, ours, anonymous_file("output"), resources)

        def started(pid: int, status: int, cpu_s: float) -> None:
            guest.pid = pid

        descriptors = [theirs.fileno(), guest.output, *streams]
        request = FORK_REQUEST.pack(b"F", *resources)
        self._ask(request, descriptors, started)
        theirs.close()
        return guest

    def _ask(self, request: bytes, descriptors: Sequence[int], then: _Answered) -> None:
        numbers = struct.pack(f"{len(descriptors)}i", *descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if descriptors else []
        try:
            self._link.sendmsg([request], rights)
        except OSError as error:
            raise ZygoteError(f"the zygote is gone ({error})") from None
        self._expected.append(then)

    def _await_pid(self, guest: GuestProcess) -> None:
        while guest.pid == 0:
            self._receive()

    def _receive(self) -> None:
        data = self._link.recv(FORK_REPLY.size)
        if len(data) != FORK_REPLY.size:
            raise ZygoteError("the zygote is gone")
        self._expected.popleft()(*FORK_REPLY.unpack(data))
