"""Programs that attack the kernel and other processes: memory, clocks, raw calls, other ABIs, shellcode, descriptors.

Every operation must be denied, or the guest killed.
"""

# ruff: noqa: E501 (lines of the hostile programs)
from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, SOCKETS, Attack

MACHINE_CODE = r'''
def run_code(code):
    """Run machine code and return the result register."""
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x22, -1, ctypes.c_long(0))
    ctypes.memmove(address, code, len(code))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
'''

ATTACKS = (
    Attack(
        "memory_of_other_processes",
        "Access the host's and the parent's memory with ptrace, /proc/PID/mem and process_vm_readv.",
        PRELUDE
        + r"""
def f(x):
    buffer = ctypes.create_string_buffer(64)
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 64)
    def mem(pid):
        return lambda: os.open(f"/proc/{pid}/mem", os.O_RDONLY) >= 0
    actions = []
    for name, pid in (("host", int("@HOST_PID@")), ("parent", os.getppid()), ("1", 1)):
        actions += [
            (f"attach {name}", true(lambda pid=pid: raw(101, 117, 16, pid, 0, 0))),
            (f"seize {name}", true(lambda pid=pid: raw(101, 117, 0x4206, pid, 0, 0))),
            (f"mem {name}", mem(pid)),
            (f"read {name}", true(lambda pid=pid: raw(310, 270, pid, vector, 1, vector, 1, 0))),
            (f"write {name}", true(lambda pid=pid: raw(311, 271, pid, vector, 1, vector, 1, 0))),
            (f"pidfd {name}", true(lambda pid=pid: raw(438, 438, os.pidfd_open(pid), 0, 0))),
            (f"kcmp {name}", true(lambda pid=pid: raw(312, 272, pid, pid, 0, 0, 0))),
            (f"clock {name}", true(lambda pid=pid: os.pread(os.open(f"/proc/{pid}/syscall", os.O_RDONLY), 1, 0))),
            (f"robust {name}", true(lambda pid=pid: raw(274, 100, pid, buffer, buffer))),
        ]
    actions += [("traceme", true(lambda: raw(101, 117, 0, 0, 0, 0))), ("self mem", mem("self"))]
    attempt(actions)
""",
        contained=True,
    ),
    Attack(
        "process_settings",
        "Change tracers, dumps, capabilities, users, filters and the death signal of the process.",
        PRELUDE
        + r"""
def f(x):
    options = {"dumpable": (4, 1), "tracer": (0x59616d61, -1), "mm": (35, 1), "pdeathsig": (1, 0), "keepcaps": (8, 1),
               "securebits": (28, 0), "capbset": (24, 0), "ambient": (47, 2), "subreaper": (36, 1), "seccomp": (22, 1),
               "timing": (14, 1), "tsc": (26, 2), "mce": (33, 1), "thp": (41, 1), "speculation": (53, 0)}
    def set_option(number, value):
        return true(lambda: raw(157, 167, number, value, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
    attempt([(name, set_option(*value)) for name, value in options.items()] + [(name, true(action)) for name, action in [
        ("setuid", lambda: os.setuid(0)), ("setgid", lambda: os.setgid(0)), ("groups", lambda: os.setgroups([0])),
        ("setresuid", lambda: os.setresuid(0, 0, 0)), ("setreuid", lambda: os.setreuid(0, 0)),
        ("capset", lambda: raw(126, 91, header, data)), ("personality", lambda: raw(135, 92, 0x0040000)),
        ("filter", lambda: raw(317, 277, 0, 0, None)),
    ]])
""",
        contained=True,
    ),
    Attack(
        "namespaces",
        "Become root of new namespaces, or enter existing ones.",
        PRELUDE
        + r"""
def f(x):
    flags = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000,
             "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80, "files": 0x400, "fs": 0x200}
    attempt([(name, true(lambda flag=flag: raw(272, 97, flag))) for name, flag in flags.items()] + [
        ("user and all", true(lambda: raw(272, 97, 0x7e020000))),
        ("setns", true(lambda: raw(308, 268, os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))),
        ("setns fd", true(lambda: raw(308, 268, 3, 0))),
        ("thread with namespace", true(lambda: raw(56, 220, 0x10000000 | 0x10000 | 0x800 | 0x100, 0, 0, 0, 0))),
    ])
""",
        contained=True,
    ),
    Attack(
        "raw_calls",
        "Make ninety system calls that solutions never need; each must fail as not permitted, not because of its arguments.",
        PRELUDE
        + r"""
# name: (x86_64, aarch64). Given arguments that the kernel would reject with anything but "not permitted".
CALLS = dict(
    socket=(41, 198), connect=(42, 203), accept=(43, 202), bind=(49, 200), listen=(50, 201), setsockopt=(54, 208),
    kill=(62, 129), semget=(64, 190), semop=(65, 193), shmat=(30, 196), shmctl=(31, 195), msgsnd=(69, 189),
    msgrcv=(70, 188), msgctl=(71, 187), rename=(82, None), mkdir=(83, 34), rmdir=(84, None), link=(86, None),
    unlink=(87, 35), symlink=(88, None), chmod=(90, None), fchmod=(91, 52), chown=(92, None), fchown=(93, 55),
    ptrace=(101, 117), syslog=(103, 116), setpgid=(109, 154), setsid=(112, 157), utime=(132, None),
    mknod=(133, 33), ustat=(136, None), setpriority=(141, 140), sched_setparam=(142, 118), vhangup=(153, 58),
    modify_ldt=(154, None), adjtimex=(159, 171), setrlimit=(160, 164), chroot=(161, 51), sync=(162, 81),
    acct=(163, 89), settimeofday=(164, 170), mount=(165, 40), umount=(166, 39), swapon=(167, 224), swapoff=(168, 225),
    reboot=(169, 142), sethostname=(170, 161), setdomainname=(171, 162), iopl=(172, None), ioperm=(173, None),
    init_module=(175, 105), delete_module=(176, 106), quotactl=(179, 60), io_setup=(206, 0), lookup_dcookie=(212, 18),
    mbind=(237, 235), set_mempolicy=(238, 237), mq_open=(240, 180), kexec_load=(246, 104), add_key=(248, 217),
    request_key=(249, 218), keyctl=(250, 219), ioprio_set=(251, 30), inotify_init=(253, 26), migrate_pages=(256, 238),
    unshare=(272, 97), splice=(275, 76), tee=(276, 77), vmsplice=(278, 75), move_pages=(279, 239),
    signalfd=(282, 74), timerfd_create=(283, 85), perf_event_open=(298, 241), fanotify_init=(300, 262),
    name_to_handle_at=(303, 264), open_by_handle_at=(304, 265), clock_adjtime=(305, 266), setns=(308, 268),
    process_vm_readv=(310, 270), kcmp=(312, 272), finit_module=(313, 273), sched_setattr=(314, 274),
    memfd_create=(319, 279), kexec_file_load=(320, 294), bpf=(321, 280), execveat=(322, 281), userfaultfd=(323, 282),
    copy_file_range=(326, 285), pkey_alloc=(330, 289), pidfd_send_signal=(424, 424), io_uring_setup=(425, 425),
    open_tree=(428, 428), move_mount=(429, 429), fsopen=(430, 430), fsmount=(432, 432), pidfd_open=(434, 434),
    openat2=(437, 437), pidfd_getfd=(438, 438), process_madvise=(440, 440), mount_setattr=(442, 442),
    landlock_create_ruleset=(444, 444), memfd_secret=(447, 447), process_mrelease=(448, 448), cachestat=(451, 451),
)
def f(x):
    def refused(name):
        def run():
            try:
                raw(*CALLS[name], -1, -1, -1, -1, -1, -1)
            except OSError as error:
                return None if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS) else errno.errorcode[error.errno]
            return "done"
        return run
    assert len(CALLS) >= 90
    attempt([(name, refused(name)) for name in CALLS])
""",
        contained=True,
    ),
    Attack(
        "x32_calls",
        "Make system calls with the x32 bit set, which a filter on plain numbers would allow.",
        PRELUDE
        + r"""
def f(x):
    bit = 0x40000000
    attempt([("socket", true(lambda: raw(bit + 41, None, 2, 1, 0))), ("kill", true(lambda: raw(bit + 62, None, 0, 0))),
             ("execve", true(lambda: raw(bit + 520, None, b"/bin/true", None, None))),
             ("ptrace", true(lambda: raw(bit + 521, None, 0, 0, 0, 0)))])
""",
        # The filter may return an error or kill the process; both are correct.
        statuses=("error", "crash", "skipped"),
    ),
    Attack(
        "int80_calls",
        "Make 32-bit system calls from 64-bit code, where numbers mean other calls.",
        PRELUDE
        + MACHINE_CODE
        + r"""
def f(x):
    def call():
        if not X86: return None
        # push rbx; mov eax, 20; int 0x80; pop rbx; ret
        return run_code(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3") > 0 or None
    attempt([("getpid", call)])
""",
        statuses=("error", "crash", "skipped"),
    ),
    Attack(
        "shellcode",
        "Make system calls from machine code in its own memory.",
        PRELUDE
        + MACHINE_CODE
        + r"""
def f(x):
    def call(number):
        def run():
            if not X86: return None
            # mov eax, number; mov edi, 2; mov esi, 1; xor edx, edx; syscall; ret
            code = b"\xb8" + number.to_bytes(4, "little") + b"\xbf\x02\0\0\0\xbe\x01\0\0\0\x31\xd2\x0f\x05\xc3"
            return run_code(code) >= 0 or None
        return run
    attempt([("socket", call(41)), ("fork", call(57)), ("setsid", call(112)), ("memfd", call(319))])
""",
        contained=True,
    ),
    Attack(
        "shellcode_crash",
        "Execute an invalid instruction.",
        PRELUDE + MACHINE_CODE + "\ndef f(x): return run_code(b'\\x0f\\x0b' if X86 else b'\\0\\0\\0\\0')\n",
        statuses=("crash", "skipped"),
    ),
    Attack(
        "descriptors_inherited",
        "Use descriptors that the host left open.",
        PRELUDE
        + SOCKETS
        + r"""
def f(x):
    found = []
    own = len(sockets())
    for fd in range(0, 4096):
        try: mode = os.fstat(fd).st_mode
        except OSError: continue
        if stat.S_ISDIR(mode) or stat.S_ISBLK(mode) or (fd > 2 and not stat.S_ISSOCK(mode)):
            found.append((f"{fd}:{mode:o}", lambda: True))
    def families():
        for fd in sockets():
            copy = os.dup(fd)
            try: family = socket.socket(fileno=copy).family
            except OSError: os.close(copy); continue
            if family != socket.AF_UNIX: return int(family)
    attempt(found + [("sockets", lambda: own if own != 1 else None), ("families", families)])
""",
        contained=True,
    ),
    Attack(
        "descriptors_smuggled",
        "Send descriptors to the judge until the judge has none left.",
        SOCKETS
        + r"""
import array
def f(x):
    for fd in sockets():
        s = wrap(fd)
        for _ in range(300):
            try:
                s.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2] * 60))], socket.MSG_DONTWAIT)
            except OSError:
                break
    return "sent"
""",
    ),
    Attack(
        "credentials_smuggled",
        "Send messages to the judge with another process's credentials.",
        SOCKETS
        + r"""
def f(x):
    for fd in sockets():
        s = wrap(fd)
        for pid in (1, os.getppid(), os.getpid()):
            try:
                s.sendmsg([b"\1"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", pid, 0, 0))])
            except OSError:
                pass
    return "sent"
""",
    ),
    Attack(
        "terminal",
        "Type commands into the terminal that started the host.",
        PRELUDE
        + r"""
import fcntl
def f(x):
    def push(fd):
        return true(lambda: fcntl.ioctl(fd, 0x5412, b"x"))
    attempt([(f"tiocsti {fd}", push(fd)) for fd in range(4)] + [
        (f"ioctl {fd} {request:x}", true(lambda fd=fd, request=request: fcntl.ioctl(fd, request, b"\0" * 64)))
        for fd in range(4) for request in (0x540e, 0x5402, 0x541c, 0x8933, 0x40086602, 0xc020660b)
    ] + [("tty", lambda: os.open("/dev/tty", os.O_RDWR)), ("ptmx", lambda: os.open("/dev/ptmx", os.O_RDWR)),
         ("openpty", lambda: os.openpty())])
""",
        contained=True,
    ),
    Attack(
        "host_modules",
        "Import modules of the host: Ray, the trainer, its settings.",
        PRELUDE
        + r"""
def f(x):
    def load(name):
        return true(lambda: __import__(name))
    sys.path += ["@REPOSITORY@", "@SITE_PACKAGES@", "@FOLDER@"]
    loaded = [n for n in sys.modules if n.split(".")[0] in ("ray", "torch", "vllm", "pytest")]
    attempt([(name, load(name)) for name in ("ray", "pytest", "hypothesis", "module", "marl_ray.core.episode", "marl_ray.cli")]
            + [("loaded", lambda: loaded or None)])
""",
        contained=True,
    ),
    Attack(
        "host_objects",
        "Search every object and frame of the process for the host's secret.",
        PRELUDE
        + r'''
import gc
def secret(thing):
    """Return whether a text holds the secret, not only the prefix that this program spells out."""
    if type(thing) is bytes: thing = thing.decode("latin-1")
    return type(thing) is str and SECRET in thing and thing != SECRET
def f(x):
    def strings(objects):
        for thing in objects:
            if secret(thing): return True
            if type(thing) is dict and any(secret(v) for v in list(thing.values())): return True
            if type(thing) in (list, tuple) and any(secret(v) for v in thing): return True
    def frames():
        frame = sys._getframe()
        while frame is not None:
            if strings([frame.f_locals, frame.f_globals]): return True
            frame = frame.f_back
    gc.unfreeze()
    attempt([("objects", lambda: strings(gc.get_objects())), ("frames", frames), ("argv", lambda: strings([sys.argv, sys.orig_argv]))])
''',
        contained=True,
    ),
    Attack(
        "process_numbers",
        "Read the numbers of the process, its parent, its thread, group and session by every call.",
        PRELUDE
        + r"""
import threading
def f(x):
    numbers = []
    thread = threading.Thread(target=lambda: numbers.append(threading.get_native_id()))
    thread.start()
    thread.join()
    attempt([(name, lambda call=call: call() or None) for name, call in {
        "pid": os.getpid, "parent": os.getppid, "group": os.getpgrp, "group 0": lambda: os.getpgid(0),
        "session": lambda: os.getsid(0), "thread": threading.get_native_id, "other thread": numbers.pop,
        "raw pid": lambda: raw(39, 172), "raw thread": lambda: raw(186, 178), "address": lambda: raw(218, 96, 0),
        "proc": lambda: os.readlink("/proc/self"), "proc 1": lambda: os.stat("/proc/1/task").st_ino and libc and os.readlink("/proc/thread-self"),
    }.items()])
""",
        contained=True,
    ),
    Attack(
        "clocks_of_others",
        "Read CPU clocks, limits, CPU sets and load of other processes.",
        PRELUDE
        + r"""
import resource, time
def f(x):
    buffer = ctypes.create_string_buffer(256)
    pids = [1, 2, int("@HOST_PID@")] + [int("@HOST_PID@") + n for n in range(1, 40)]
    actions = [(f"clock {pid}", true(lambda pid=pid: time.clock_gettime((~pid << 3) | 2))) for pid in pids]
    actions += [(f"limits {pid}", true(lambda pid=pid: raw(302, 261, pid, 0, None, buffer))) for pid in pids]
    actions += [(f"cpus {pid}", true(lambda pid=pid: os.sched_getaffinity(pid))) for pid in [0, *pids]]
    attempt(actions + [
        ("timer", true(lambda: raw(222, 107, 1, None, buffer))), ("load", true(os.getloadavg)),
        ("system", true(lambda: raw(99, 179, buffer))), ("page cache", true(lambda: raw(27, 232, id(buffer) & ~4095, 4096, buffer))),
        ("own clock of a thread", true(lambda: time.clock_gettime(time.pthread_getcpuclockid(__import__("threading").get_ident())))),
    ])
""",
        contained=True,
    ),
    Attack(
        "locks_and_waiting_threads",
        "Find locks and waiting threads of other processes.",
        PRELUDE
        + r"""
import fcntl, struct
def f(x):
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    word = ctypes.c_int(0)
    attempt([(f"{name} {fd}", true(lambda fd=fd, number=number: fcntl.fcntl(fd, number, lock)))
             for fd in (0, 1) for name, number in (("get", fcntl.F_GETLK), ("wait", fcntl.F_SETLKW), ("ofd", 36), ("lease", 1024))]
            + [("null for writing", true(lambda: fcntl.lockf(0, fcntl.LOCK_EX | fcntl.LOCK_NB))),
               ("flock", true(lambda: fcntl.flock(0, fcntl.LOCK_SH | fcntl.LOCK_NB))),
               ("wake", true(lambda: raw(202, 98, ctypes.addressof(word), 1, 10, None))),
               ("requeue", true(lambda: raw(202, 98, ctypes.addressof(word), 3, 1, 1, ctypes.addressof(word)))),
               ("wait on many", true(lambda: raw(449, 449, ctypes.addressof(word), 0, 0, 0, 0)))])
""",
        contained=True,
    ),
)
