"""Operations on the calling process: fork, prctl, resource limits, capabilities, descriptors, anonymous files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
import sys
import threading

from . import syscalls

LINUX = sys.platform == "linux"
libc = ctypes.CDLL(None, use_errno=True)
_bare_fork = ctypes.PyDLL(None).fork

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_PROT_READ = 1
_MAP_PRIVATE = 2
_MAP_ANONYMOUS = 0x20
_MAP_FAILED = ctypes.c_void_p(-1).value
_M_ARENA_MAX = -8
_CLONE_THREAD = 0x00010000
_CAPABILITY_VERSION_3 = 0x20080522


def check(result: int, operation: str) -> int:
    """Return the result of a C function. Raises OSError with the C library's `errno` if the result is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{operation}: {os.strerror(code)}")
    return result


def system_call(name: str, *arguments: object) -> int:
    """Make a system call for which the C library has no function. Raises OSError."""
    return check(libc.syscall(ctypes.c_long(syscalls.number(name) or 0), *arguments), name)


def _prctl(operation: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    check(libc.prctl(operation, ctypes.c_ulong(argument), zero, zero, zero), f"prctl {operation}")


def fork() -> int:
    """Call fork(2) without Python's fork hooks, in a process with a single thread. Raises OSError.

    The hooks of `os.fork` are unnecessary with a single thread, and touch so many pages that a child costs twice as
    much.
    """
    pid = int(_bare_fork())
    if pid < 0:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return pid


def require_one_thread() -> None:
    """Raise OSError if this process has several threads, Python's or not: children would lack them."""
    if LINUX and libc.unshare(_CLONE_THREAD) != 0:  # does nothing but fail in a process with several threads
        raise OSError(errno.EINVAL, "sandbox.packages: one of them starts threads when it is imported")


def no_new_privs() -> None:
    """Keep this process and its children from gaining rights by exec; required by seccomp and Landlock."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the parent ends; exit at once if the parent has already ended.

    The signal fires when the forking *thread* ends, so both processes must be single-threaded.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def disable_dumps() -> None:
    """Disable core dumps, and tracing and reading of this process's memory (/proc) by processes of the same user."""
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_user(user: int) -> None:
    """Change to an ordinary user and group without supplementary groups. Raises OSError if not permitted."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_capabilities() -> None:
    """Give up every capability, for a root user that may not change its user."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    nothing = ctypes.create_string_buffer(24)
    system_call("capset", header, nothing)


def close_from(lowest: int) -> None:
    """Close every descriptor from `lowest` upwards."""
    try:
        system_call("close_range", ctypes.c_uint(lowest), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0))
    except OSError:
        os.closerange(lowest, 65536)


def close_except(*kept: int) -> None:
    """Close every descriptor but these and the standard streams."""
    lowest = 3
    for descriptor in sorted(kept):
        os.closerange(lowest, descriptor)
        lowest = descriptor + 1
    close_from(lowest)


def limit(**limits: int) -> None:
    """Set soft and hard resource limits by name, as in `limit(NOFILE=64)`; a tighter hard limit is kept."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        try:
            resource.setrlimit(kind, (value, value))
        except ValueError:
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (hard, hard))


def address_space() -> int:
    """Return the bytes of address space that this process has mapped, to within a page.

    Bisects for the smallest RLIMIT_AS under which one more page fits: there is no /proc/self/statm under bubblewrap.
    """
    if not LINUX:
        return 0
    page = os.sysconf("SC_PAGESIZE")
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS
    libc.mmap.restype = ctypes.c_void_p
    before = resource.getrlimit(resource.RLIMIT_AS)
    maximum = 1 << 46 if before[1] == resource.RLIM_INFINITY else before[1]
    low, high = 0, maximum // page
    try:
        while high - low > 1:
            middle = (low + high) // 2
            resource.setrlimit(resource.RLIMIT_AS, (middle * page, before[1]))
            address = libc.mmap(None, ctypes.c_size_t(page), _PROT_READ, flags, -1, ctypes.c_long(0))
            if address == _MAP_FAILED:
                low = middle
            else:
                high = middle
                libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(page))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return high * page


def share_malloc_arena() -> None:
    """Let all threads allocate from one arena: glibc's arena per thread takes 64 MiB of the limited address space."""
    if LINUX and hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def offer_to_oom_killer() -> None:
    """Ask the kernel to kill this process first, before any Ray process, when memory runs out. Best effort."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
        file.write("1000")


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file without a path: in memory on Linux, an unlinked temporary file elsewhere."""
    if LINUX:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def seal(descriptor: int) -> None:
    """Forbid all further writes to an anonymous file, also through descriptors opened for writing."""
    if LINUX:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)


def limit_stack_size(largest: int) -> None:
    """Reduce the stacks that a program asks for. Templates for deep recursion ask for 512 MiB and more, as much as the
    program's whole memory: its thread would start without memory for anything else, and wait for ever."""
    set_size = threading.stack_size

    def stack_size(size: int = 0) -> int:
        return set_size(min(size, largest))

    threading.stack_size = stack_size
