"""seccomp-bpf filters for guests and judge: an allow list by system call and by argument.

Calls that are not allowed fail with EPERM, so that library code degrades instead of dying. Calls of a foreign ABI (x32,
`int 0x80`) kill the process, because their numbers mean other calls. See seccomp(2) and
`Documentation/userspace-api/seccomp_filter.rst`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence

from . import syscalls
from .process import check, libc

# Results of a filter (SECCOMP_RET_...). SECCOMP_RET_ERRNO carries the error's number in its low half.
_ALLOW = 0x7FFF0000
_ASK = 0x7FC00000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000
# Instructions (BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, ...).
_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06
_AND = 0x54
# Offsets in `struct seccomp_data`. An argument has 64 bits, and an instruction loads 32.
_NUMBER_OFFSET = 0
_ARCH_OFFSET = 4
_ARGUMENTS_OFFSET = 16
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_SECCOMP_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_WAIT_KILLABLE = 1 << 5

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000 | 0x80  # all CLONE_NEW..., of which CLONE_NEWTIME is the 0x80
_TMPFILE = 0o20000000  # O_TMPFILE without O_DIRECTORY
_PATH_ONLY = 0o10000000  # O_PATH
_NOFOLLOW = 0x100  # AT_SYMLINK_NOFOLLOW
_FUTEX_PRIVATE = 0x80
_FUTEX_COMMAND = 0x7F
_FUTEX_WAIT = 0
_FUTEX_WAIT_BITSET = 9
_MAX_CLOCKS = 16
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _TMPFILE
_AF_UNIX = 1
_SOCK_STREAM = 1
_SOCK_TYPE_MASK = 0xF  # the rest are flags
_INTERNET = (2, 10)  # AF_INET, AF_INET6

# All but MSG_PEEK _TRUNC _DONTWAIT _WAITALL _NOSIGNAL _MORE _CMSG_CLOEXEC, which Python's own modules use. Forbidden
# are MSG_OOB, whose handling for local sockets has had holes, and flags of other families (zero copy, fast open).
_FORBIDDEN_MESSAGE_FLAGS = 0xFFFFFFFF ^ (0x2 | 0x20 | 0x40 | 0x100 | 0x4000 | 0x8000 | 0x40000000)

_PRCTL_ALLOWED = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA (malloc names its areas)
_PR_SET_PDEATHSIG = 1  # a judge's process for one problem ends with the judge
_IOCTL_ALLOWED = (0x5401, 0x541B, 0x5451, 0x5450, 0x5421)  # TCGETS FIONREAD FIOCLEX FIONCLEX FIONBIO
# F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC F_GETPIPE_SZ. Excluded are F_SETOWN and F_SETSIG, which
# together send any signal to any process of the same user without kill(), and F_SETPIPE_SZ, which takes memory outside
# RLIMIT_AS.
_FCNTL_ALLOWED = (0, 1, 2, 3, 4, 1030, 1032)
# F_SETLK, which databases use. Excluded are F_SETLKW, which blocks, and F_GETLK: all guests may put read locks on the
# files that all may read, and only F_GETLK would show such a lock to another guest.
_F_SETLK = 6
_F_ADD_SEALS = 1033  # the judge seals the guest's standard input

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, constant: `struct sock_filter`."""


def _low(argument: int) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument


def _high(argument: int) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument + 4


def _return(action: int) -> Instruction:
    return _RETURN, 0, 0, action


def _deny(code: int = errno.EPERM) -> Instruction:
    return _return(_ERRNO | code)


def _one_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    """Allow the call if the low half of an argument is one of `values`."""
    body = [_low(argument)]
    for position, value in enumerate(values):
        remaining = len(values) - 1 - position
        body.append((_JUMP_EQUAL, remaining, 0 if remaining else 1, value))
    return [*body, _return(_ALLOW), _deny()]


def _without_bits(argument: int, forbidden: int, error: int = errno.EPERM) -> list[Instruction]:
    """Allow the call if the low half of an argument has none of these bits."""
    return [_low(argument), (_JUMP_ANY_BIT, 1, 0, forbidden), _return(_ALLOW), _deny(error)]


def _null(argument: int) -> list[Instruction]:
    """Allow the call if an argument is a null pointer."""
    return [
        _low(argument),
        (_JUMP_EQUAL, 0, 3, 0),
        _high(argument),
        (_JUMP_EQUAL, 0, 1, 0),
        _return(_ALLOW),
        _deny(),
    ]


_THREADS_ONLY = [
    _low(0),
    (_JUMP_ANY_BIT, 2, 0, _CLONE_NAMESPACES),
    (_JUMP_ANY_BIT, 0, 1, _CLONE_THREAD),
    _return(_ALLOW),
    _deny(),
]
"""Allow `clone` for new threads, not for new processes."""


def _search(boundaries: Sequence[int], *, inside: bool = False, behind: int = 0) -> list[Instruction]:
    """Jump to the first instruction behind the search for a call whose number lies inside a run of allowed numbers,
    and to the second one for other calls.

    Bisects and shares these two instructions, because the kernel compiles a new filter and evaluates it for every
    possible call, and each guest installs one. `inside`: whether numbers below all boundaries lie inside. `behind`:
    number of instructions between this part of the search and its end.
    """
    if not boundaries:
        return []
    middle = len(boundaries) // 2
    above = inside == (middle % 2 == 1)
    high = _search(boundaries[middle + 1 :], inside=above, behind=behind)
    low = _search(boundaries[:middle], inside=inside, behind=len(high) + behind)
    # Where a half has no boundary left, the search ends: one instruction further for a number that lies outside.
    end = len(low) + len(high) + behind
    to_high = len(low) if high else end + (not above)
    to_low = 0 if low else end + (not inside)
    return [(_JUMP_GREATER_EQUAL, to_high, to_low, boundaries[middle]), *low, *high]


def build_filter(*, may_open: bool, own_mounts: bool = False, judge: bool = False, may_write: bool = False) -> bytes:
    """Return a filter as an array of `struct sock_filter`. Raises OSError on an unknown architecture.

    - `may_open`: allow opening files for reading; False if no path rule restricts them.
    - `own_mounts`: allow reading links and their times (see `syscalls.ABOUT_LINKS`).
    - `may_write`: allow opening for writing, and creating, renaming, removing and locking files; only under Landlock.
    - `judge`: allow the judge's calls and new processes, and tell processes and clocks apart.
    """
    if not syscalls.supported():
        raise OSError(errno.ENOSYS, f"no system call table for {syscalls.MACHINE}")
    no_follow = 0 if own_mounts else _NOFOLLOW
    checked: dict[str, list[Instruction]] = {
        # No namespaces, and in a guest threads only. clone3 passes its flags in memory, where a filter cannot read
        # them; on ENOSYS glibc falls back to clone.
        "clone": _without_bits(0, _CLONE_NAMESPACES) if judge else _THREADS_ONLY,
        "clone3": [_deny(errno.ENOSYS)],
        # Two processes that map one file could wake and count each other's waiting threads. Waiting stays allowed:
        # pthread_join needs it, and the kernel itself wakes that thread.
        "futex": [
            _low(1),
            (_JUMP_ANY_BIT, 3, 0, _FUTEX_PRIVATE),
            (_AND, 0, 0, _FUTEX_COMMAND),
            (_JUMP_EQUAL, 1, 0, _FUTEX_WAIT),
            (_JUMP_EQUAL, 0, 1, _FUTEX_WAIT_BITSET),
            _return(_ALLOW),
            _deny(),
        ],
        # prlimit64 as a getter of the caller's own limits only: process 0, and no pointer to a new limit.
        "prlimit64": [
            _low(0),
            (_JUMP_EQUAL, 0, 5, 0),
            _low(2),
            (_JUMP_EQUAL, 0, 3, 0),
            _high(2),
            (_JUMP_EQUAL, 0, 1, 0),
            _return(_ALLOW),
            _deny(),
        ],
        # Without the resource usage of the child, which counts as getrusage does.
        "wait4": _null(3),
        "waitid": _null(4),
        "prctl": _one_of(0, (*_PRCTL_ALLOWED, *[_PR_SET_PDEATHSIG] * judge)),
        "ioctl": _one_of(1, _IOCTL_ALLOWED),
        "fcntl": _one_of(1, (*_FCNTL_ALLOWED, *[_F_ADD_SEALS] * judge, *[_F_SETLK] * may_write)),
        # Connected local stream pairs only (asyncio needs one).
        "socketpair": [
            _low(0),
            (_JUMP_EQUAL, 0, 4, _AF_UNIX),
            _low(1),
            (_AND, 0, 0, _SOCK_TYPE_MASK),
            (_JUMP_EQUAL, 0, 1, _SOCK_STREAM),
            _return(_ALLOW),
            _deny(),
        ],
        "sendto": _without_bits(3, _FORBIDDEN_MESSAGE_FLAGS),
        "recvfrom": _without_bits(3, _FORBIDDEN_MESSAGE_FLAGS),
        "recvmsg": _without_bits(2, _FORBIDDEN_MESSAGE_FLAGS),
        "newfstatat": _without_bits(3, no_follow),
        "statx": _without_bits(2, no_follow),
    }
    if may_open:
        # Landlock or the mount namespace decides which paths. O_TMPFILE is always denied.
        forbidden = _TMPFILE if may_write else _WRITING
        if not own_mounts:
            forbidden |= _PATH_ONLY
        checked["openat"] = _without_bits(2, forbidden, errno.EACCES)
        checked["open"] = _without_bits(1, forbidden, errno.EACCES)
    if not judge:
        for name in syscalls.PROCESS_NUMBERS:
            checked[name] = [_deny(0)]
        # Larger numbers are CPU clocks of other processes and threads.
        own_clock = [_low(0), (_JUMP_GREATER_EQUAL, 1, 0, _MAX_CLOCKS), _return(_ALLOW), _deny(errno.EINVAL)]
        for name in syscalls.CLOCKS:
            checked[name] = own_clock

    program = _own_architecture()
    if syscalls.MACHINE == "x86_64":
        program += [(_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT), _return(_KILL_PROCESS)]
    allowed = syscalls.ALLOWED
    if judge:
        allowed |= syscalls.JUDGE_ONLY | syscalls.PROCESS_NUMBERS | syscalls.CLOCKS
    if may_write:
        allowed |= syscalls.SCRATCH_ONLY | {"ftruncate"}
    if own_mounts:
        allowed |= syscalls.ABOUT_LINKS
    # An architecture may lack a call.
    numbers = {number for number in map(syscalls.number, allowed) if number is not None}
    boundaries = sorted(numbers ^ {number + 1 for number in numbers})  # where runs of consecutive numbers begin and end
    program += [*_search(boundaries), _return(_ALLOW)]
    for name, body in checked.items():
        number = syscalls.number(name)
        if number is not None:
            program += [(_JUMP_EQUAL, 0, len(body), number), *body]
    return _assembled([*program, _deny()])


def build_command_filter() -> bytes:
    """Return a filter for a whole command in namespaces of its own (`private_root`). It refuses the calls in
    `syscalls.REFUSED_TO_COMMANDS`, new namespaces, and sockets of other families than IPv4 and IPv6: network
    namespaces do not separate all other families, and a local socket in a readable folder belongs to the user.
    """
    checked: dict[str, list[Instruction]] = {
        "clone": _without_bits(0, _CLONE_NAMESPACES),
        "clone3": [_deny(errno.ENOSYS)],
        "socket": _one_of(0, _INTERNET),
    }
    program = _own_architecture()
    if syscalls.MACHINE == "x86_64":
        program += [(_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT), _return(_KILL_PROCESS)]
    for name in sorted(syscalls.REFUSED_TO_COMMANDS):
        if (number := syscalls.number(name)) is not None:
            program += [(_JUMP_EQUAL, 0, 1, number), _deny()]
    for name, body in checked.items():
        program += [(_JUMP_EQUAL, 0, len(body), syscalls.number(name) or 0), *body]
    return _assembled([*program, _return(_ALLOW)])


def build_no_fork_filter() -> bytes:
    """Return a filter for a process that the judge has forked: it may start threads, but no process."""
    clone = syscalls.number("clone") or 0
    check_clone = [(_JUMP_EQUAL, 0, len(_THREADS_ONLY), clone), *_THREADS_ONLY]
    return _assembled([*_own_architecture(), *check_clone, _return(_ALLOW)])


def build_thread_filter() -> bytes:
    """Return a filter that asks the holder of its listener before a thread starts or ends (see `thread_limit`).

    A call that another filter denies is denied without asking.
    """
    program = _own_architecture()
    for name in ("clone", "exit"):
        program += [(_JUMP_EQUAL, 0, 1, syscalls.number(name) or 0), _return(_ASK)]
    return _assembled([*program, _return(_ALLOW)])


def _own_architecture() -> list[Instruction]:
    """Kill a process that calls through another ABI, where numbers mean other calls; then load the call's number."""
    return [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[syscalls.MACHINE]),
        _return(_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]


def _assembled(program: Iterable[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


class Filter:
    """A filter prepared for installation, which takes at most two system calls and hardly any allocation."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        # struct sock_fprog: number of instructions, address of the first
        self._header = ctypes.create_string_buffer(struct.pack("HP", len(code) // 8, ctypes.addressof(self._code)))
        self._number = ctypes.c_long(syscalls.number("seccomp") or 0)

    def install(self, *, listen: bool = False) -> int:
        """Put the calling process under the filter permanently; `no_new_privs` must be set.

        With `listen`, returns the descriptor over which the filter asks. Raises OSError if the kernel rejects the
        filter.
        """
        # Without the second flag (Linux 5.19) a signal repeats the question, and the thread would be counted twice.
        attempts = (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER) if listen else (0,)
        for flags in attempts:
            mode = ctypes.c_long(_SECCOMP_SET_MODE_FILTER)
            result = libc.syscall(self._number, mode, ctypes.c_long(flags), self._header)
            if result >= 0:
                return int(result)
        return check(result, "seccomp")
