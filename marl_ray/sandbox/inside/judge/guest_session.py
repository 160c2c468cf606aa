"""The judge's request-response session with one guest."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..protocol import messages
from ..protocol.encoding import ProtocolError, UnsupportedValue, Wire
from ..protocol.messages import Status
from .evaluation_context import CONTEXT, GuestFault
from .proxies import JudgeObjects
from .remote_errors import ErrorDecoder
from .zygote_client import GuestProcess

_ANSWER_SIZES = {"ok": (1, 2), "raise": (6,), "syntax": (3,)}
"""Allowed numbers of parts after the kind of an answer."""


class GuestSession:
    """Session with one guest: strictly one request, then one answer.

    The session has no deadlines: the judge's `DeadlineTimer` interrupts any of its calls with a `GuestFault`.
    """

    def __init__(self, guest: GuestProcess, max_reply: int) -> None:
        self.guest = guest
        self.fault: GuestFault | None = None
        self.closed = False
        self.mutations = 0
        """Number of requests after which the program's objects may answer differently."""
        self.decoding = False
        self.objects = JudgeObjects(self)
        self._errors = ErrorDecoder(self.objects.decode_value)
        self._dropped: list[int] = []
        self._recursion_limit = messages.RECURSION
        self._connection = guest.connection
        self._reader = messages.FrameReader(guest.connection.recv, longest=max_reply + 4096)
        self._clock = (~guest.pid << 3) | 2  # the process's CPU clock, as in clock_getcpuclockid(3)
        self._last_cpu_s = 0.0

    def cpu_s(self) -> float:
        """Return the guest's CPU seconds so far; after its exit the last known value."""
        try:
            self._last_cpu_s = time.clock_gettime(self._clock)
        except OSError:
            pass
        return self._last_cpu_s

    def fail(self, status: Status, error_type: str, message: str) -> GuestFault:
        """Mark this guest as failed and return the fault, which every later request raises too."""
        self.fault = self.fault or GuestFault(status, error_type, message)
        return self.fault

    def violation(self, message: str) -> GuestFault:
        """Mark this guest as failed by a violation of the protocol."""
        return self.fail("crash", "ProtocolError", message)

    def current_session(self) -> GuestSession:
        """Return this session, for its proxies. Raises Refused if the session is closed."""
        if self.closed:
            raise CONTEXT.refuse("an object of the program was lost when its process ended")
        return self

    def request(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> list[Wire]:
        """Send JSON arguments, then encoded values; return the answer, its kind first.

        Raises GuestFault if the guest is gone or breaks the protocol, Refused for a value that cannot be sent.
        """
        self.current_session()
        if self.fault is not None:
            raise self.fault
        nonce = os.urandom(8).hex()
        frame = self._frame(nonce, operation, plain, values)
        try:
            self._connection.sendall(frame)
            body = self._reader.frame()
            if self._reader.has_more:
                raise ProtocolError("more than one answer")
            answer = json.loads(body)
        except (OSError, messages.ConnectionClosed):
            raise self.fail("crash", "ProcessExit", "") from None
        except messages.FrameTooLong as error:
            raise self.violation(f"answer of {error} bytes") from None
        except ProtocolError as error:
            raise self.violation(str(error)) from None
        except Exception as error:  # e.g. MemoryError: the unread rest would be parsed as the next answer
            raise self.violation(f"answer is not JSON ({type(error).__name__})") from None
        if type(answer) is not list or len(answer) < 2 or answer[0] != nonce:
            raise self.violation("answer to another question")
        kind = answer[1]
        if type(kind) is not str or len(answer) - 2 not in _ANSWER_SIZES.get(kind, ()):
            raise self.violation("answer of an unknown kind")
        return answer[1:]

    def _frame(self, nonce: str, operation: str, plain: Sequence[Wire], values: Sequence[Any]) -> bytes:
        objects = self.objects
        first = objects.next_number
        try:
            changes = objects.pending_changes()
            wires = objects.encode_values(*values)
            self._dropped += objects.drop_unreferenced()
            news = [self._dropped, changes] if changes or self._dropped else None
            frame = messages.pack([nonce, operation, news, *plain, *wires])
        except UnsupportedValue as error:
            objects.roll_back(first)
            raise CONTEXT.refuse(f"{error}, so it cannot be given to the program") from None
        except BaseException:  # e.g. the test's stack or the memory is exhausted
            objects.roll_back(first)
            self._dropped = [number for number in self._dropped if number < first]
            raise
        self._dropped = []
        try:
            objects.take_snapshot()
        except Exception as error:  # the snapshot counts as sent, but the frame is not
            raise self.violation(f"request cannot be sent ({type(error).__name__})") from None
        return frame

    def wait_for_exit(self) -> None:
        """Wait until the guest's process is gone, and ignore everything it still sends."""
        with contextlib.suppress(OSError):
            while self.fault is None and self._connection.recv(messages.CHUNK):
                pass

    def fetch(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> Any:
        """Return the value that a request gives. Raises the program's exception if the guest reports one."""
        answer = self.request(operation, *plain, values=values)
        objects = self.objects
        self.decoding = True
        try:
            if answer[-1] is not None and (answer[0] == "raise" or len(answer) == 3):
                objects.apply_changes(answer[-1])
            if answer[0] == "raise":
                result: Any = self._errors.exception(answer[1:6])
            elif answer[0] == "ok" and len(answer) == 3:
                result = objects.decode_value(answer[1])
            else:
                raise ProtocolError("answer of the wrong kind")
            objects.take_snapshot()
        except ProtocolError as error:
            raise self.violation(str(error)) from None
        except Exception as error:  # e.g. too large or too deep: no part of the answer may reach the test
            raise self.violation(f"malformed answer ({type(error).__name__})") from None
        finally:
            self.decoding = False
        if answer[0] == "raise":
            raise result
        return result

    def mutate(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> Any:
        """Return the value of a request that may change the program's state, which invalidates cached answers."""
        self.mutations += 1
        return self.fetch(operation, *plain, values=values)

    def call(self, target: str | int, attribute: str | None, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Call a function of the program, at the recursion limit that the tests have set."""
        limit = sys.getrecursionlimit()
        if limit != self._recursion_limit:
            self._recursion_limit = limit
            self.fetch("operate", "setrecursionlimit", values=[limit])
        return self.mutate("call", target, attribute, list(keywords), values=[*arguments, *keywords.values()])
