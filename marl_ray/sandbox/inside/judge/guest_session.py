"""The judge's conversation with one guest: requests and answers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from ..protocol import frames
from ..protocol.encoding import ProtocolError, UnsupportedValue, Wire
from ..protocol.records import Status
from . import remote_exceptions
from .evaluation_context import CONTEXT, GuestFault
from .objects import JudgeObjects
from .proxies import ProxyObject
from .zygote_client import GuestProcess

_ANSWER_SIZES = {"ok": (1, 2), "raise": (6,), "syntax": (3,)}


class GuestSession:
    """Strictly request and answer.

    Deadlines are not in here: the judge's timer interrupts any of these calls with a `GuestFault`.
    """

    def __init__(self, guest: GuestProcess, max_reply: int) -> None:
        self.guest = guest
        self.fault: GuestFault | None = None
        self.closed = False
        self.state = 0
        """Goes up with everything a test does that may change what the program's objects answer."""
        self.decoding = False
        self._objects = JudgeObjects(self)
        self._dropped: list[int] = []
        self._connection = guest.connection
        self._reader = frames.FrameReader(guest.connection, longest=max_reply + 4096)
        self._clock = (~guest.pid << 3) | 2  # the process's CPU clock, as in clock_getcpuclockid(3)
        self._last_cpu_s = 0.0

    def cpu_s(self) -> float:
        """Processor time of the guest so far; the last known once it is gone."""
        try:
            self._last_cpu_s = time.clock_gettime(self._clock)
        except OSError:
            pass
        return self._last_cpu_s

    def fail(self, status: Status, error_type: str, message: str) -> GuestFault:
        """Note that this guest is beyond use; every later request raises the same."""
        if self.fault is None:
            self.fault = GuestFault(status, error_type, message)
        return self.fault

    def open_session(self) -> GuestSession:
        """This session, for one of its objects. Raises Refused once its guest is gone."""
        if self.closed:
            raise CONTEXT.refuse("an object of the program was lost when its process ended")
        return self

    def changed(self) -> list[tuple[Any, Any]]:
        """What the program has changed of the tests' objects, with copies of what they were (see `sharing.restore`)."""
        return self._objects.changed_by_peer()

    # --- messages ---

    def request(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> list[Wire]:
        """Send a request, JSON, then values; gives the answer, its kind first.

        Raises GuestFault when the guest is gone or does not keep to the protocol, Refused for a value that cannot cross.
        """
        self.open_session()
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
        except (OSError, frames.ConnectionClosed):
            raise self.fail("crash", "ProcessExit", "") from None
        except frames.FrameTooLong as error:
            raise self.fail("crash", "ProtocolError", f"answer of {error} bytes") from None
        except ProtocolError as error:
            raise self.fail("crash", "ProtocolError", str(error)) from None
        except Exception as error:  # out of memory, say: the rest of it would be taken for another answer
            raise self.fail("crash", "ProtocolError", f"answer is not JSON ({type(error).__name__})") from None
        if type(answer) is not list or len(answer) < 2 or answer[0] != nonce:
            raise self.fail("crash", "ProtocolError", "answer to another question")
        kind = answer[1]
        if type(kind) is not str or len(answer) - 2 not in _ANSWER_SIZES.get(kind, ()):
            raise self.fail("crash", "ProtocolError", "answer of an unknown kind")
        return answer[1:]

    def _frame(self, nonce: str, operation: str, plain: Sequence[Wire], values: Sequence[Any]) -> bytes:
        objects = self._objects
        first = objects.next_number()
        try:
            changes = objects.pending_changes()
            wires = objects.encode_values(*values)
            self._dropped += objects.drop_unreferenced()
            news = [self._dropped, changes] if changes or self._dropped else None
            frame = frames.pack([nonce, operation, news, *plain, *wires])
        except UnsupportedValue as error:
            objects.roll_back(first)
            raise CONTEXT.refuse(f"{error}, so it cannot be given to the program") from None
        except BaseException:  # a test at the end of its stack, or of the memory
            objects.roll_back(first)
            self._dropped = [number for number in self._dropped if number < first]
            raise
        self._dropped = []
        try:
            objects.take_snapshot()
        except Exception as error:  # the guest will not hear of what is settled
            raise self.fail("crash", "ProtocolError", f"request cannot be sent ({type(error).__name__})") from None
        return frame

    def await_end(self) -> None:
        """Until the guest's process is gone; what it may still say is of no interest."""
        while self.fault is None:
            try:
                if not self._connection.recv(frames.CHUNK):
                    return
            except OSError:
                return

    # --- values ---

    def value(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> Any:
        """A request whose answer is one value. Raises what the guest reports as raised."""
        answer = self.request(operation, *plain, values=values)
        objects = self._objects
        self.decoding = True
        try:
            if answer[-1] is not None and (answer[0] == "raise" or len(answer) == 3):
                objects.apply_changes(answer[-1])
            if answer[0] == "raise":
                result: Any = remote_exceptions.exception(answer, objects.decode_value)
            elif answer[0] == "ok" and len(answer) == 3:
                result = objects.decode_value(answer[1])
            else:
                raise ProtocolError("answer of the wrong kind")
            objects.take_snapshot()
        except ProtocolError as error:
            raise self.fail("crash", "ProtocolError", str(error)) from None
        except Exception as error:  # too large or too deep, say: nothing of it may get into the test
            raise self.fail("crash", "ProtocolError", f"malformed answer ({type(error).__name__})") from None
        finally:
            self.decoding = False
        if answer[0] == "raise":
            raise result
        return result

    def changing(self, operation: str, *plain: Wire, values: Sequence[Any] = ()) -> Any:
        """A request after which the program's objects may give other answers."""
        self.state += 1
        return self.value(operation, *plain, values=values)

    def call(self, target: str | int, attribute: str | None, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Call a function of the program."""
        self.state += 1
        return self.value("call", target, attribute, list(keywords), values=[*arguments, *keywords.values()])

    def handle(self, payload: Wire, place: Any = None) -> ProxyObject:
        """The stand-in for a reference. Raises ProtocolError."""
        return self._objects.handle(payload, place or self)
