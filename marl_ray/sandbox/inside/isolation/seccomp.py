"""A seccomp-bpf filter for guests and judges: default deny, by call and by argument.

What is not allowed answers EPERM, so that library code degrades instead of dying; a foreign ABI (x32,
`int 0x80`) kills the process, since its numbers mean other calls. See seccomp(2) and
`Documentation/userspace-api/seccomp_filter.rst`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence, Set

from . import syscalls
from .process import libc

_ALLOW = 0x7FFF0000
_ASK = 0x7FC00000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_SECCOMP_SET_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000 | 0x80
_TMPFILE = 0o20000000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _TMPFILE
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF

# MSG_PEEK _TRUNC _DONTWAIT _WAITALL _NOSIGNAL _MORE _CMSG_CLOEXEC: what Python's own modules use. Not MSG_OOB, whose
# handling for local sockets has had holes, nor anything of other families (zero copy, fast open).
_MESSAGE_FLAGS = 0x2 | 0x20 | 0x40 | 0x100 | 0x4000 | 0x8000 | 0x40000000

_PRCTL_ALLOWED = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA (malloc names its areas)
_IOCTL_ALLOWED = (0x5401, 0x541B, 0x5451, 0x5450, 0x5421)  # TCGETS FIONREAD FIOCLEX FIONCLEX FIONBIO
# F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC F_GETPIPE_SZ. Not F_SETOWN and F_SETSIG: together
# they send any signal to any process of the same user, without kill(). Not F_SETPIPE_SZ: memory outside
# RLIMIT_AS.
_FCNTL_ALLOWED = (0, 1, 2, 3, 4, 1030, 1032)
_F_LOCKS = (5, 6)  # F_GETLK F_SETLK, as databases use them; not F_SETLKW, which waits
_F_ADD_SEALS = 1033  # the judge seals the guest's standard input

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, constant: `struct sock_filter`."""


def _low(argument: int) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument


def _high(argument: int) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument + 4


def _give(action: int) -> Instruction:
    return _RETURN, 0, 0, action


def _deny(code: int = errno.EPERM) -> Instruction:
    return _give(_ERRNO | code)


def _one_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    """Allow when the low half of an argument is one of `values`."""
    body = [_low(argument)]
    for position, value in enumerate(values):
        left = len(values) - 1 - position
        body.append((_JUMP_EQUAL, left, 0 if left else 1, value))
    return [*body, _give(_ALLOW), _deny()]


def _read_only(flags: int) -> list[Instruction]:
    """Allow an open whose flags argument asks for reading only; Landlock or the mount namespace rules on
    paths.
    """
    return [_low(flags), (_JUMP_ANY_BIT, 1, 0, _WRITING), _give(_ALLOW), _deny(errno.EACCES)]


def _named(flags: int) -> list[Instruction]:
    """Allow an open, writing included, but not of a file without a name; Landlock rules on paths."""
    return [_low(flags), (_JUMP_ANY_BIT, 1, 0, _TMPFILE), _give(_ALLOW), _deny(errno.EACCES)]


def _message_flags(argument: int) -> list[Instruction]:
    """Allow a transfer over a socket that asks for nothing out of the ordinary."""
    return [_low(argument), (_JUMP_ANY_BIT, 1, 0, 0xFFFFFFFF ^ _MESSAGE_FLAGS), _give(_ALLOW), _deny()]


def _boundaries(numbers: Set[int]) -> list[int]:
    """Where runs of these numbers begin and end, each end being the first number behind a run."""
    return sorted(numbers ^ {number + 1 for number in numbers})


def _search(boundaries: Sequence[int], *, inside: bool) -> list[Instruction]:
    """Allow a call whose number lies inside a run. `inside`: whether the numbers below all boundaries do.

    By bisection: the kernel runs a filter for every possible call when it is installed, which each guest pays for.
    """
    if not boundaries:
        return [_give(_ALLOW) if inside else _deny()]
    middle = len(boundaries) // 2
    low = _search(boundaries[:middle], inside=inside)
    high = _search(boundaries[middle + 1 :], inside=inside == (middle % 2 == 1))
    return [(_JUMP_GREATER_EQUAL, len(low), 0, boundaries[middle]), *low, *high]


def build_filter(
    *, may_open: bool, extra: Iterable[str] = (), may_seal: bool = False, may_write: bool = False
) -> bytes:
    """The filter as an array of `struct sock_filter`.

    `may_open`: whether files may be opened for reading at all, and links be read (False where no path rule
    backs it up).
    `may_write`: whether files may be opened for writing, made, renamed, removed and locked; only under Landlock.
    `extra`: further calls to allow. Raises OSError where the architecture is not known.
    """
    if not syscalls.supported():
        raise OSError(errno.ENOSYS, f"no system call table for {syscalls.MACHINE}")
    checked: dict[str, list[Instruction]] = {
        # Threads, but neither processes nor namespaces. clone3 hides its flags in memory: glibc takes ENOSYS
        # as the order to use clone.
        "clone": [
            _low(0),
            (_JUMP_ANY_BIT, 2, 0, _CLONE_NAMESPACES),
            (_JUMP_ANY_BIT, 0, 1, _CLONE_THREAD),
            _give(_ALLOW),
            _deny(),
        ],
        "clone3": [_deny(errno.ENOSYS)],
        # prlimit64 as a getter: the pointer to the new limit is null.
        "prlimit64": [
            _low(2),
            (_JUMP_EQUAL, 0, 3, 0),
            _high(2),
            (_JUMP_EQUAL, 0, 1, 0),
            _give(_ALLOW),
            _deny(),
        ],
        "prctl": _one_of(0, _PRCTL_ALLOWED),
        "ioctl": _one_of(1, _IOCTL_ALLOWED),
        "fcntl": _one_of(1, (*_FCNTL_ALLOWED, *[_F_ADD_SEALS] * may_seal, *_F_LOCKS * may_write)),
        # Connected local stream pairs only (asyncio wakes itself up with one).
        "socketpair": [
            _low(0),
            (_JUMP_EQUAL, 0, 4, _AF_UNIX),
            _low(1),
            (_AND, 0, 0, _SOCK_TYPE_MASK),
            (_JUMP_EQUAL, 0, 1, _SOCK_STREAM),
            _give(_ALLOW),
            _deny(),
        ],
        "sendto": _message_flags(3),
        "recvfrom": _message_flags(3),
        "recvmsg": _message_flags(2),
    }
    if may_open:
        opens = _named if may_write else _read_only
        checked |= {"openat": opens(2), "open": opens(1)}

    program = _own_architecture()
    if syscalls.MACHINE == "x86_64":
        program += [(_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT), _give(_KILL_PROCESS)]
    for name, body in checked.items():
        number = syscalls.number(name)
        if number is not None:
            program += [(_JUMP_EQUAL, 0, len(body), number), *body]
    if may_write:
        extra = (*extra, "ftruncate", *syscalls.SCRATCH_ONLY)
    allowed = {*syscalls.GUEST_ALLOWED, *extra} - (frozenset() if may_open else syscalls.READS_LINKS)
    numbers = {number for name in allowed if (number := syscalls.number(name)) is not None}
    return _assembled([*program, *_search(_boundaries(numbers), inside=False)])


def build_question() -> bytes:
    """A filter that asks, before a thread starts or ends, whoever holds its listener (see `thread_limit`).

    What another filter denies is denied without asking.
    """
    program = _own_architecture()
    for name in ("clone", "exit"):
        program += [(_JUMP_EQUAL, 0, 1, syscalls.number(name) or 0), _give(_ASK)]
    return _assembled([*program, _give(_ALLOW)])


def _own_architecture() -> list[Instruction]:
    """Kill what calls by another ABI, where numbers mean other calls; then load the call's number."""
    return [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[syscalls.MACHINE]),
        _give(_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]


def _assembled(program: Iterable[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


class _FilterHeader(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Filter:
    """A filter ready to be installed; installing takes two system calls and no allocation to speak of."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        self._header = _FilterHeader(len(code) // 8, ctypes.cast(self._code, ctypes.c_void_p))
        self._number = ctypes.c_long(syscalls.number("seccomp") or 0)

    def install(self, *, listen: bool = False) -> int:
        """Put the calling process under the filter, for good; it must have `no_new_privs` set.

        Gives with `listen` the descriptor over which the filter asks. Raises OSError when the kernel does not take it.
        """
        # Without the second flag (Linux 5.19) a signal repeats the question, and the answer is counted twice.
        for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER) if listen else (0,):
            mode = ctypes.c_long(_SECCOMP_SET_MODE_FILTER)
            result = libc.syscall(self._number, mode, ctypes.c_long(flags), ctypes.byref(self._header))
            if result >= 0:
                return int(result)
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")
