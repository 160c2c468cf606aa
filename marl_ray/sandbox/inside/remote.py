"""The judge's view of a guest: a session with deadlines, and stand-ins for what lives in the guest.

Only plain data comes out of a guest. A `Handle` stands for anything else: it can be called, its attributes
and methods can be used, but it has no equality, order or truth, because those would be the program's word on
whether its own answer is right. For the same reason arithmetic is allowed between two handles only: `handle -
expected` would hand the expected value to the program.
"""

from __future__ import annotations

import builtins
import json
import os
import time
from collections.abc import Callable
from typing import Any

from . import frames
from .codec import ProtocolError, Unsupported, Wire, decode, encode
from .zygote_link import Process

_CHUNKS = (1, 4, 16, 64, 256)
"""How many items an iterator in the guest is asked for at the first time, the second time, and so on."""
_ANSWER_SIZES = {"ok": (1, 2), "raise": (4,), "syntax": (3,)}
_NEVER_RAISED = (StopIteration, StopAsyncIteration)
"""A program that raises these would end the loops of a test early: `all(map(candidate, cases))` would be
true.
"""


class Fault(BaseException):
    """The guest is beyond use: `status` is timeout or crash.

    Tests cannot catch it with `except Exception`, and the judge looks at `Session.fault` in case they caught
    it with a bare `except`.
    """

    def __init__(self, status: str, error_type: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.message = message


class CannotCross(BaseException):
    """A test passes the program something that is not data (a function, say): the guest has to run these
    tests.
    """


class RemoteError(Exception):
    """What the guest reports as raised, when no builtin exception fits."""


def clean_text(text: Any, limit: int = 500) -> str:
    """Guest text fit for logs and prompts: no surrogates, no control or escape characters, bounded."""
    if not isinstance(text, str):
        return ""
    text = text[:limit].encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def clean_line(line: Any) -> int | None:
    return line if type(line) is int and 0 < line < 1 << 31 else None


class Session:
    """A conversation with one guest process, strictly request and answer.

    Deadlines are not in here: the judge's timer interrupts any of these calls with a `Fault`.
    """

    def __init__(self, guest: Process, max_reply: int) -> None:
        self.guest = guest
        self.fault: Fault | None = None
        self._connection = guest.connection
        self._max_frame = max_reply + 4096
        self._clock = (~guest.pid << 3) | 2  # the process's CPU clock, as in clock_getcpuclockid(3)
        self._last_cpu_s = 0.0

    def cpu_s(self) -> float:
        """Processor time of the guest so far; the last known once it is gone."""
        try:
            self._last_cpu_s = time.clock_gettime(self._clock)
        except OSError:
            pass
        return self._last_cpu_s

    def fail(self, status: str, error_type: str, message: str) -> Fault:
        """Note that this guest is beyond use; every later request raises the same."""
        if self.fault is None:
            self.fault = Fault(status, error_type, message)
        return self.fault

    def request(self, *message: Wire) -> list[Wire]:
        """Send a request. -> the answer, its kind first. Fault when the guest is gone or does not keep to the
        protocol.
        """
        if self.fault is not None:
            raise self.fault
        nonce = os.urandom(8).hex()
        try:
            self._connection.sendall(frames.pack([nonce, *message]))
            answer = json.loads(self._receive())
        except (OSError, frames.Closed):
            raise self.fail("crash", "ProcessExit", "") from None
        except ProtocolError as error:
            raise self.fail("crash", "ProtocolError", str(error)) from None
        except (ValueError, RecursionError) as error:
            raise self.fail("crash", "ProtocolError", f"answer is not JSON ({type(error).__name__})") from None
        if type(answer) is not list or len(answer) < 2 or answer[0] != nonce:
            raise self.fail("crash", "ProtocolError", "answer to another question")
        kind = answer[1]
        if type(kind) is not str or len(answer) - 2 not in _ANSWER_SIZES.get(kind, ()):
            raise self.fail("crash", "ProtocolError", "answer of an unknown kind")
        return answer[1:]

    def _receive(self) -> bytes:
        """One frame and nothing behind it; bounded before it is read."""
        data = bytearray()
        need = frames.HEADER.size
        known = False
        while len(data) < need:
            chunk = self._connection.recv(max(frames.CHUNK, need - len(data)))
            if not chunk:
                raise frames.Closed
            data += chunk
            if not known and len(data) >= frames.HEADER.size:
                known = True
                need += frames.HEADER.unpack_from(data)[0]
                if need > self._max_frame:
                    raise ProtocolError(f"answer of {need} bytes")
        if len(data) > need:
            raise ProtocolError("more than one answer")
        return bytes(data[frames.HEADER.size :])

    def await_end(self) -> None:
        """Until the guest's process is gone; what it may still say is of no interest."""
        while self.fault is None:
            try:
                if not self._connection.recv(frames.CHUNK):
                    return
            except OSError:
                return

    def value(self, *message: Wire) -> Any:
        """A request whose answer is one value."""
        answer = self.request(*message)
        if answer[0] != "ok" or len(answer) != 2:
            raise self.unexpected(answer)
        return self.decoded(answer[1])

    def unexpected(self, answer: list[Wire]) -> BaseException:
        """What to raise for an answer that is not the value asked for."""
        if answer[0] == "raise":
            return remote_exception(answer)
        return self.fail("crash", "ProtocolError", "answer of the wrong kind")

    def decoded(self, wire: Wire) -> Any:
        try:
            return decode(wire, self._handle)
        except ProtocolError as error:
            raise self.fail("crash", "ProtocolError", str(error)) from None

    def _handle(self, payload: Wire) -> Handle:
        if type(payload) is not list or [type(part) for part in payload] != [int, str, bool]:
            raise ProtocolError("malformed reference")
        return Handle(self, *payload)

    def _refer(self, value: Any) -> Wire:
        if type(value) is not Handle:
            raise Unsupported(f"{type(value).__name__} is not plain data")
        session, target = _parts(value)
        if session is not self and not isinstance(target, str):
            raise RemoteError("an object of the program was lost when its process ended")
        return [target]

    def encoded(self, value: Any) -> Wire:
        try:
            return encode(value, self._refer)
        except Unsupported as error:
            raise CannotCross(str(error)) from None

    def call(self, target: str | int, attribute: str | None, arguments: tuple[Any, ...], keywords: Any) -> Any:
        """Call a function of the program; list, dict, set and bytearray arguments show what it did to them."""
        answer = self.request("call", target, attribute, self.encoded(list(arguments)), self.encoded(keywords))
        if answer[0] != "ok" or len(answer) != 3:
            raise self.unexpected(answer)
        if answer[2] is not None:
            after = self.decoded(answer[2])
            if type(after) is not list or len(after) != len(arguments):
                raise self.fail("crash", "ProtocolError", "arguments came back changed in number")
            for before, now in zip(arguments, after, strict=True):
                _copy_back(before, now)
        return self.decoded(answer[1])


def _copy_back(before: Any, now: Any) -> None:
    if type(before) is not type(now):
        return
    if type(before) is list or type(before) is bytearray:
        before[:] = now
    elif type(before) is dict or type(before) is set:
        before.clear()
        before.update(now)


def remote_exception(answer: list[Wire]) -> Exception:
    """The exception to raise for `raise` [type name, message, line, builtin bases].

    It is of the nearest builtin class, so that a test's `except ValueError` works; `remote` on it holds what
    is to be reported.
    """
    _, name, message, line, bases = answer
    kind: type[Exception] = RemoteError
    for base in bases if type(bases) is list else ():
        found = getattr(builtins, base, None) if type(base) is str else None
        if isinstance(found, type) and issubclass(found, Exception):
            kind = found
            break
    if issubclass(kind, _NEVER_RAISED):
        kind = RemoteError
    error = kind.__new__(kind)
    error.args = (clean_text(message),)
    report = (clean_text(name, 80) or "Exception", clean_text(message), clean_line(line))
    error.remote = report  # type: ignore[attr-defined]
    return error


class Handle:
    """An object, or a name, of the program. See the module's docstring for what it cannot do, and why."""

    __slots__ = ("__buffer", "__chunk", "__iterator", "__session", "__target", "__type")

    def __init__(self, session: Session | Callable[[], Session], target: str | int, name: str, iterator: bool) -> None:
        own = object.__setattr__
        own(self, "_Handle__session", session)
        own(self, "_Handle__target", target)
        own(self, "_Handle__type", clean_text(name, 80))
        own(self, "_Handle__iterator", iterator)
        own(self, "_Handle__buffer", [])
        own(self, "_Handle__chunk", 0)

    def __open(self) -> Session:
        session = self.__session
        return session if isinstance(session, Session) else session()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.__open().call(self.__target, None, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.__open().value("get", self.__target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        session = self.__open()
        session.value("set", self.__target, name, session.encoded(value))

    def __iter__(self) -> Handle:
        if self.__iterator:
            return self
        return _operate(self, "iter", self)

    def __next__(self) -> Any:
        if not self.__iterator:
            raise TypeError(f"{describe(self)} is not an iterator")
        buffer = self.__buffer
        if not buffer and self.__chunk >= 0:
            most = _CHUNKS[min(self.__chunk, len(_CHUNKS) - 1)]
            session = self.__open()
            answer = session.request("next", self.__target, most)
            if answer[0] != "ok" or len(answer) != 3:
                raise session.unexpected(answer)
            values = session.decoded(answer[1])
            if type(values) is not list or len(values) > most or not (values or answer[2]):
                raise session.fail("crash", "ProtocolError", "malformed items")
            buffer.extend(reversed(values))
            object.__setattr__(self, "_Handle__chunk", -1 if answer[2] else self.__chunk + 1)
        if not buffer:
            raise StopIteration
        return buffer.pop()

    def __eq__(self, other: object) -> bool:
        raise TypeError(f"{describe(self)} is not plain data, so it cannot be compared")

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(f"{describe(self)} is not plain data, so it has no truth value")

    def __enter__(self) -> Any:
        return self.__open().call(self.__target, "__enter__", (), {})

    def __exit__(self, *error: object) -> None:
        self.__open().call(self.__target, "__exit__", (None, None, None), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        _operate(self, "setitem", self, key, value)


def _parts(handle: Handle) -> tuple[Any, str | int]:
    return handle._Handle__session, handle._Handle__target  # type: ignore[attr-defined]


def describe(handle: Handle) -> str:
    return f"an object of the program's type {handle._Handle__type}"  # type: ignore[attr-defined]


def _operate(handle: Handle, function: str, *arguments: Any) -> Any:
    session = handle._Handle__open()  # type: ignore[attr-defined]
    return session.value("operate", function, session.encoded(list(arguments)))


def _one_sided(function: str) -> Callable[..., Any]:
    def method(self: Handle, *arguments: Any) -> Any:
        return _operate(self, function, self, *arguments)

    return method


def _two_sided(function: str) -> Callable[[Handle, Any], Any]:
    def method(self: Handle, other: Any) -> Any:
        if type(other) is not Handle:
            raise TypeError(f"{describe(self)} cannot be combined with plain data here")
        return _operate(self, function, self, other)

    return method


for _name in ("len", "str", "repr", "int", "float", "abs", "neg", "pos", "invert", "getitem", "delitem"):
    setattr(Handle, f"__{_name}__", _one_sided(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor"):
    setattr(Handle, f"__{_name.rstrip('_')}__", _two_sided(_name))
del _name
