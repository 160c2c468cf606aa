"""Small primitives on the calling process: prctl, resource limits, capabilities, descriptors."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
import sys

from . import syscalls

LINUX = sys.platform == "linux"
libc = ctypes.CDLL(None, use_errno=True)
_bare_fork = ctypes.PyDLL(None).fork

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_PROT_READ, _MAP_PRIVATE, _MAP_ANONYMOUS = 1, 2, 0x20
_MAP_FAILED = ctypes.c_void_p(-1).value
_M_ARENA_MAX = -8
_CLONE_THREAD = 0x00010000
_CAPABILITY_VERSION_3 = 0x20080522


def _prctl(operation: int, argument: int) -> None:
    zero = ctypes.c_ulong(0)
    if libc.prctl(operation, ctypes.c_ulong(argument), zero, zero, zero) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {operation}: {os.strerror(code)}")


def fork() -> int:
    """fork(2) without Python's own preparations and repairs, for a process with one thread and nothing registered.

    `os.fork` runs hooks (of `threading`, `random`, `logging`) and resets the interpreter's locks in the child. With a
    single thread none of it is needed, and it touches so many pages that a child costs twice as much.
    """
    pid = int(_bare_fork())
    if pid < 0:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return pid


def require_one_thread() -> None:
    """Raises OSError where this process has further threads, Python's or not: they would be missing in its children.

    unshare(2) with this flag does nothing, and says EINVAL in a process with several threads.
    """
    if LINUX and libc.unshare(_CLONE_THREAD) != 0:
        raise OSError(errno.EINVAL, "sandbox.packages: one of them starts threads when it is imported")


def no_new_privs() -> None:
    """No exec gives this process or its children more rights than it has; both filters below require it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent's thread that forked this process ends; exits at once if that has happened.

    Only sound between single-threaded processes, which zygote, judge and guest are.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def disable_dumps() -> None:
    """No core dump, and no other process of the same user may trace this one or read its memory through
    /proc.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_user(user: int) -> None:
    """Become an ordinary user (and group) without supplementary groups. Raises OSError where that is not allowed."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_capabilities() -> None:
    """Give up every capability, for a root that may not change its user."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    nothing = ctypes.create_string_buffer(24)
    if libc.syscall(ctypes.c_long(syscalls.number("capset") or 0), header, nothing):
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def close_from(lowest: int) -> None:
    """Close every descriptor from `lowest` up."""
    if LINUX:
        number = ctypes.c_long(syscalls.number("close_range") or 0)
        if libc.syscall(number, ctypes.c_uint(lowest), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0)) == 0:
            return
    os.closerange(lowest, 65536)


def limit(**limits: int) -> None:
    """Set soft and hard resource limits by name: `limit(NOFILE=64)`. A tighter hard limit in place stays."""
    for name, value in limits.items():
        what = getattr(resource, f"RLIMIT_{name}", None)
        if what is None:
            continue
        try:
            resource.setrlimit(what, (value, value))
        except ValueError:
            _, hard = resource.getrlimit(what)
            resource.setrlimit(what, (hard, hard))


def address_space() -> int:
    """Bytes of address space this process has mapped, to within a page.

    Found by search: under which RLIMIT_AS does one more page still fit? /proc/self/statm, which would tell,
    is not there under bubblewrap.
    """
    if not LINUX:
        return 0
    page = os.sysconf("SC_PAGESIZE")
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS
    libc.mmap.restype = ctypes.c_void_p
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = 1 << 46 if before[1] == resource.RLIM_INFINITY else before[1]
    low, high = 0, most // page
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
    """Let all threads allocate from one arena.

    glibc reserves 64 MiB of address space for each thread's own, and a guest's memory limit counts address space.
    """
    if LINUX and hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def offer_to_oom_killer() -> None:
    """Ask to be the first to go when memory runs out, before any Ray process. Best effort."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def anonymous_file(name: str) -> int:
    """The descriptor of a file that has no path: in memory on Linux, an unlinked temporary file elsewhere."""
    if LINUX:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def seal(descriptor: int) -> None:
    """Let nobody write to an anonymous file any more, not even through a descriptor opened for writing."""
    if LINUX:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
