"""System call numbers of x86_64 and aarch64, and the sets of calls that guests and judges may use.

Numbers are from the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`.
"""

from __future__ import annotations

import platform
import sys

MACHINE = platform.machine()
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(MACHINE) if sys.platform == "linux" else None

_TABLE = """
# open files
read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, pread64 17 67, pwrite64 18 68, readv 19 65
writev 20 66, preadv 295 69, pwritev 296 70, dup 32 23, dup2 33 -, dup3 292 24, fcntl 72 25, ioctl 16 29
ftruncate 77 46, close_range 436 436, memfd_create 319 279
# paths
open 2 -, openat 257 56, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44
access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents64 217 61
getcwd 79 17, chdir 80 49, umask 95 166
# changes of folders
unlink 87 -, unlinkat 263 35, mkdir 83 -, mkdirat 258 34, rmdir 84 -, rename 82 -, renameat 264 38
renameat2 316 276, fsync 74 82, fdatasync 75 83
# memory
mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, mremap 25 216, msync 26 227, madvise 28 233
membarrier 324 283
# waiting, pipes and local sockets
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd2 290 19, pipe 22 -
pipe2 293 59, socketpair 53 199, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212
shutdown 48 210
# signals, threads, time
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, restart_syscall 219 128, pause 34 -
clone 56 220, clone3 435 435, futex 202 98, set_tid_address 218 96
set_robust_list 273 99, rseq 334 293, arch_prctl 158 -, prctl 157 167, sched_yield 24 124
sched_getaffinity 204 123, sched_setaffinity 203 122, getcpu 309 168, nanosleep 35 101
clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, getitimer 36 102
setitimer 38 103, alarm 37 -
# information about the process itself
getpid 39 172, getppid 110 173, gettid 186 178, getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174
geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158, getresuid 118 148, getresgid 120 150
getrlimit 97 163, prlimit64 302 261, getrusage 98 165, times 100 153, uname 63 160
getrandom 318 278, wait4 61 260, waitid 247 95, exit 60 93, exit_group 231 94
# used by this package, allowed in no filter (seccomp: in the judge's)
seccomp 317 277, capset 126 91, mount_setattr 442 442, landlock_create_ruleset 444 444, landlock_add_rule 445 445
landlock_restrict_self 446 446
# refused to commands, allowed in no filter of guests and judge
mount 165 40, umount2 166 39, pivot_root 155 41, open_tree 428 428, move_mount 429 429, fsopen 430 430
fsconfig 431 431, fsmount 432 432, fspick 433 433, unshare 272 97, setns 308 268, chroot 161 51, ptrace 101 117
process_vm_readv 310 270, process_vm_writev 311 271, pidfd_getfd 438 438, kcmp 312 272, bpf 321 280
perf_event_open 298 241, userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426
io_uring_register 427 427, add_key 248 217, request_key 249 218, keyctl 250 219, name_to_handle_at 303 264
open_by_handle_at 304 265, shmget 29 194, memfd_secret 447 447, init_module 175 105, finit_module 313 273
delete_module 176 106, kexec_load 246 104, kexec_file_load 320 294, swapon 167 224, swapoff 168 225
reboot 169 142, acct 163 89, quotactl 179 60, syslog 103 116, personality 135 92, socket 41 198
"""
"""Name, number on x86_64, number on aarch64; "-" where the architecture does not have the call."""


_ROWS = [entry.split() for line in _TABLE.strip().splitlines() if line[0] != "#" for entry in line.split(", ")]
_NUMBERS = {name: [None if text == "-" else int(text) for text in numbers] for name, *numbers in _ROWS}

PROCESS_NUMBERS = frozenset({"getpid", "getppid", "gettid", "getpgrp", "getpgid", "getsid", "set_tid_address"})
"""Calls that answer 0 in a guest: the kernel numbers processes and threads in order, so a number would tell how many
threads earlier programs started."""
CLOCKS = frozenset({"clock_gettime", "clock_getres", "clock_nanosleep"})
CHECKED = frozenset(
    {"open", "openat", "newfstatat", "statx", "clone", "clone3", "futex", "prlimit64", "prctl", "ioctl", "fcntl"}
    | {"socketpair", "sendto", "recvfrom", "recvmsg", "wait4", "waitid"}
)
"""Calls whose arguments the filter checks (see `seccomp`), like PROCESS_NUMBERS and CLOCKS in guests."""

_DENIED = frozenset(
    {"capset", "mount_setattr", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
)
JUDGE_ONLY = frozenset(
    {"memfd_create", "ftruncate", "sched_setaffinity", "sched_getaffinity", "sendmsg", "seccomp", "getrusage"}
)
"""Calls of the judge only. With `seccomp` the processes that it forks restrict themselves further. `sendmsg` sends
descriptors; the kernel counts descriptors in flight per user, so one guest could block all others. `sched_getaffinity`
tells whether the judge pins its guest, which depends on past programs. `getrusage` counts blocks that were read from
the disk, which tells what past programs have read into the file cache."""
SCRATCH_ONLY = frozenset(
    {"unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "rename", "renameat", "renameat2", "fsync", "fdatasync"}
)
"""Calls of a guest with a scratch folder; Landlock decides which paths they reach. Excluded are chmod, chown and
utimensat, which Landlock does not check, and truncate, links and special files, which programs do not need there."""
ABOUT_LINKS = frozenset({"readlink", "readlinkat", "lstat"})
"""Calls that need mounts of the zygote's own: without those, the access time of a link tells whether a program has
followed the link, and links in /proc reveal numbers, programs and folders of processes."""
REFUSED_TO_COMMANDS = _DENIED - {"capset"} | frozenset(
    {"mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "unshare"}
    | {"setns", "chroot", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "bpf"}
    | {"perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "add_key"}
    | {"request_key", "keyctl", "name_to_handle_at", "open_by_handle_at", "shmget", "memfd_create", "memfd_secret"}
    | {"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "swapon", "swapoff", "reboot"}
    | {"acct", "quotactl", "syslog", "personality"}
)
"""Calls that a command of a program under training may not make (`build_command_filter`): mounts and namespaces, other
processes, kernel interfaces with a history of holes, and memory that no limit of a process counts."""
ALLOWED = (
    frozenset(_NUMBERS) - CHECKED - PROCESS_NUMBERS - CLOCKS - _DENIED - JUDGE_ONLY - SCRATCH_ONLY - ABOUT_LINKS
) - (REFUSED_TO_COMMANDS | {"socket"})
"""Calls that guests and judge may make with any arguments."""


def supported() -> bool:
    """Return whether this is Linux on an architecture of the table."""
    return _COLUMN is not None


def number(name: str) -> int | None:
    """Return the number of a call; None if this architecture lacks it. Raises OSError on an unknown architecture."""
    if _COLUMN is None:
        raise OSError(f"no system call table for {MACHINE}")
    return _NUMBERS[name][_COLUMN]
