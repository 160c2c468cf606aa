"""Messages between processes: length-prefixed JSON frames, fork requests, limits on a program, and its verdicts.

A frame is four bytes of length, little endian, followed by that many bytes of JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

FORK_REQUEST = struct.Struct("<cIIII")
"""`F` and the fields of GuestLimits, with descriptors [connection, output, input?, errors?]; `K`, process, 0, 0, 0; or
`L`, 0, 0, 0, 0 with the descriptor of a further connection, whose guests end when its other end is closed."""
FORK_REPLY = struct.Struct("<ii")
"""To `F`: process or minus errno, 0. To `K`: process, wait status. To `L`: no reply."""
PROGRESS = struct.Struct("<qq")
"""Program and test that the judge evaluates, in a file that the host reads if the judge is killed; test -1: none."""
STUCK_STATUS = 98
"""Exit status of a zygote whose judge did not return from C code within its CPU limit."""


class GuestLimits(NamedTuple):
    """Limits of one guest process in MiB, seconds and bytes; a spare guest fits a program if these are equal."""

    memory_mb: int
    cpu_s: int
    output: int
    reply: int


RECURSION = 3000
"""Recursion limit of judge and guests; the deepest value that crosses needs half of it (`encoding.MAX_DEPTH`)."""
HEADER = struct.Struct("<I")
CHUNK = 1 << 14
"""Bytes to read while the size of a frame is unknown: for 128 KiB and more, malloc would map and unmap memory."""
_LONGEST = HEADER.size + (1 << 32) - 1
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class ConnectionClosed(Exception):
    """The peer closed the connection."""


class FrameTooLong(Exception):
    """The peer announced a frame beyond the limit; the argument is its size in bytes, header included."""


def pack(message: Any) -> bytes:
    """Encode one frame."""
    body = _ENCODER.encode(message).encode()
    return HEADER.pack(len(body)) + body


class FrameReader:
    """A reader of frames, several per system call if they arrive together.

    `receive(size)` returns at most `size` bytes, like `recv` of a blocking socket. If `receive` raises, the next call
    continues the frame. `longest` bounds a frame in bytes, header included, before the frame is read.
    """

    def __init__(self, receive: Callable[[int], bytes], longest: int = _LONGEST) -> None:
        self._receive = receive
        self._longest = longest
        self._buffer: bytes | bytearray = b""

    @property
    def has_more(self) -> bool:
        """Whether more data arrived with the last frame."""
        return bool(self._buffer)

    def frame(self) -> bytes | bytearray:
        """Return the body of the next frame. Raises ConnectionClosed and FrameTooLong."""
        while True:
            buffer = self._buffer
            need = HEADER.size
            if len(buffer) >= need:
                need += HEADER.unpack_from(buffer)[0]
                if need > self._longest:
                    raise FrameTooLong(need)
                if len(buffer) >= need:
                    self._buffer = buffer[need:]
                    return buffer[HEADER.size : need]
            data = self._receive(max(CHUNK, need - len(buffer)))
            if not data:
                raise ConnectionClosed
            if isinstance(buffer, bytearray):
                buffer += data
            else:
                self._buffer = bytearray(buffer + data) if buffer else data

    def message(self) -> Any:
        """Return the next frame's content; for trusted peers, which bound their own sizes."""
        return json.loads(self.frame())


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one program, set by the caller, enforced by the judge. Raises ValueError unless all are positive."""

    test_cpu_s: float = 10.0
    """CPU seconds per test. CPU time decides, which keeps verdicts stable on busy machines."""
    test_wall_s: float = 30.0
    """Wall-clock seconds per test, a few times `test_cpu_s`: catches programs that sleep or deadlock."""
    program_wall_s: float = 60.0
    """Wall-clock seconds of all tests together; tests that have not run by then are `skipped`."""
    max_timeouts: int = 3
    """Timeouts after which the remaining tests are `skipped`."""
    max_crashes: int = 2
    """Crashes after which the remaining tests are `skipped`."""
    memory_mb: int = 512
    """MiB of address space in addition to the zygote's."""
    max_output_bytes: int = 65536
    max_reply_bytes: int = 8 << 20
    """Maximum size of one reply of the guest; a larger result is an error."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            kinds = (int, float) if item.name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1 << 30:
                raise ValueError(f"limits.{item.name} must be a positive number, not {value!r}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limits:
        """Read limits from JSON; missing keys keep their defaults. Raises ValueError that names an unknown key."""
        reject_unknown_keys("limits", data, {item.name for item in fields(cls)})
        return cls(**data)


def reject_unknown_keys(name: str, data: Mapping[str, Any], known: Set[str]) -> None:
    """Raise ValueError that names the first unknown key of `data`; `name` says what `data` is."""
    unknown = sorted(str(key) for key in data if key not in known)
    if unknown:
        raise ValueError(f"{name}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")


Status = Literal["pass", "fail", "error", "timeout", "crash", "skipped"]
"""`fail`: the test's own assertion did not hold. `error`: an exception. `timeout`: the CPU or wall limit of the test.
`crash`: the guest process died or violated the protocol. `skipped`: the program's budget was used up."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The verdict on one test."""

    __test__ = False  # keeps pytest from collecting this class

    status: Status
    error_type: str | None = None
    message: str | None = None
    line: int | None = None
    """Line of the program."""
    source: str = ""
    """Text of the test."""
    trusted: bool = True
    """False if the program had a say in the verdict beyond its data: see `ExecutionReport`."""


@dataclass(frozen=True, slots=True)
class SyntaxDiagnosis:
    """Why and where a program does not parse; `line` and `column` count from 1."""

    message: str
    line: int | None
    column: int | None


def to_dict(record: Any) -> dict[str, Any]:
    """Return the fields of a data class with slots by name."""
    return {name: getattr(record, name) for name in record.__slots__}
