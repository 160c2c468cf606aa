"""More programs that try to use up the machine: output, threads, descriptors, disk, timers, what runs at exit."""

from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, Attack

ATTACKS = (
    Attack(
        "print_flood",
        "print for ever",
        "def f(x):\n    while True: print('x' * 10**4)\n",
    ),
    Attack(
        "print_flood_raw",
        "gigabytes on descriptors 1 and 2, past sys.stdout",
        PRELUDE
        + r"""
def f(x):
    def flood(fd):
        total = 0
        block = b"x" * (1 << 20)
        while total < 256 << 20:
            written = os.write(fd, block)
            if written <= 0:
                return None
            total += written
            if os.fstat(fd).st_size == 0:
                return None
        return total
    attempt([("stdout", lambda: flood(1)), ("stderr", lambda: flood(2))])
""",
        # RLIMIT_FSIZE may end it with SIGXFSZ before it can report.
        statuses=("error", "crash", "timeout", "skipped"),
    ),
    Attack(
        "output_stretched",
        "make the file behind stdout a terabyte long, without writing it",
        PRELUDE
        + r"""
import signal
def f(x):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    def sparse(fd):
        os.lseek(fd, 1 << 40, os.SEEK_SET)
        os.write(fd, b"x")
        return os.fstat(fd).st_size > 1 << 30
    def truncate(fd):
        os.ftruncate(fd, 1 << 40)
        return os.fstat(fd).st_size > 1 << 30
    def allocate(fd):
        os.posix_fallocate(fd, 0, 1 << 30)
        return os.fstat(fd).st_size >= 1 << 30
    attempt([(f"{way.__name__}{fd}", lambda way=way, fd=fd: way(fd))
             for way in (sparse, truncate, allocate) for fd in (0, 1, 2)])
""",
        contained=True,
    ),
    Attack(
        "output_overwritten",
        "erase what was printed, put text that no log should hold in its place",
        "import os\ndef f(x):\n    print('first', flush=True)\n    try: os.lseek(1, 0, 0)\n    except OSError: pass\n"
        "    os.write(1, b'\\x1b]0;owned\\x07\\xff\\xfe\\x00')\n    return 0\n",
    ),
    Attack(
        "threads",
        "ten thousand threads",
        PRELUDE
        + r"""
import threading
def f(x):
    def many():
        event = threading.Event()
        for _ in range(10000):
            threading.Thread(target=event.wait, daemon=True).start()
        return True
    attempt([("threads", many)])
""",
        # Where the test's time is up before the limit on memory stops it, that is as good.
        statuses=("error", "timeout", "crash", "skipped"),
    ),
    Attack(
        "threads_busy_after_reply",
        "answer, and leave threads that go on working",
        "import threading\ndef spin():\n    while True: pass\n"
        "def f(x):\n    for _ in range(4): threading.Thread(target=spin, daemon=True).start()\n    return 0\n",
    ),
    Attack(
        "thread_at_exit",
        "a thread that is not a daemon, so that the interpreter waits for it at exit",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\ndef f(x): return 0\n",
    ),
    Attack(
        "descriptors",
        "open descriptors until the system has none",
        PRELUDE
        + r"""
def f(x):
    def many():
        held = []
        while len(held) < 5000:
            held.append(os.dup(1))
        return len(held)
    def pipes():
        held = [os.pipe() for _ in range(2000)]
        return len(held)
    attempt([("dup", many), ("pipe", pipes)])
""",
        contained=True,
    ),
    Attack(
        "disk",
        "fill a file system: any file anywhere that can be created and written",
        PRELUDE
        + r"""
import tempfile
def f(x):
    def fill(folder):
        def run():
            fd = os.open(os.path.join(folder, "marl_ray_attack"), os.O_CREAT | os.O_WRONLY, 0o600)
            return os.write(fd, b"x" * 4096) > 0
        return run
    folders = ["/tmp", "/var/tmp", "/dev/shm", "/run", ".", "/", os.path.expanduser("~"), "@FOLDER@"]
    attempt([(folder, fill(folder)) for folder in folders]
            + [("tempfile", lambda: tempfile.TemporaryFile()), ("mkdtemp", lambda: tempfile.mkdtemp())])
""",
        contained=True,
    ),
    Attack(
        "limits_raised",
        "raise the limits, the priority, the scheduling class",
        PRELUDE
        + r"""
import resource
def f(x):
    def raised(name):
        def run():
            which = getattr(resource, name)
            soft, hard = resource.getrlimit(which)
            if hard == resource.RLIM_INFINITY:
                return None
            resource.setrlimit(which, (hard + 4096, hard + 4096))
            return resource.getrlimit(which)[1] > hard
        return run
    names = ["RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_MEMLOCK"]
    attempt([(name, raised(name)) for name in names] + [
        ("nice", lambda: os.nice(-1) < 0),
        ("priority", true(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))),
        ("realtime", true(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))),
        ("affinity", true(lambda: os.sched_setaffinity(os.getppid(), {0}))),
        ("prlimit_parent", true(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)))),
    ])
""",
        contained=True,
    ),
    Attack(
        "timer_storm",
        "a timer every microsecond whose handler starts the work again",
        r"""
import signal
def again(*args):
    while True: pass
def f(x):
    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
    while True: pass
""",
        statuses=("timeout", "crash", "skipped"),
    ),
    Attack(
        "realtime_signal",
        "die by a signal that has no name: a timer of the kernel can send one without kill()",
        PRELUDE
        + r"""
def f(x):
    import struct
    event = ctypes.create_string_buffer(struct.pack("<qii", 0, 40, 0), 64)
    timer = ctypes.c_int()
    when = ctypes.create_string_buffer(struct.pack("<qqqq", 0, 0, 0, 10**6), 32)
    raw(222, 107, 1, event, ctypes.byref(timer))
    raw(223, 110, timer.value, 0, when, None)
    while True: pass
""",
        statuses=("crash", "skipped"),
    ),
    Attack(
        "finaliser_loops",
        "an object whose end never comes, and an exit handler that never returns",
        r"""
import atexit
def hang(*args):
    while True: pass
class Undead:
    def __del__(self): hang()
atexit.register(hang)
def f(x):
    Undead()
    return 0
""",
        statuses=("timeout", "crash", "skipped"),
    ),
    Attack(
        "gc_callback_loops",
        "a garbage collector callback that never returns",
        r"""
import gc
def hang(*args):
    while True: pass
def f(x):
    gc.callbacks.append(hang)
    gc.collect()
    return 0
""",
        statuses=("timeout", "crash", "skipped"),
    ),
    Attack(
        "trace_loops",
        "a trace function that never returns, set on the frames of the guest itself",
        r"""
import sys
def hang(frame, event, arg):
    while True: pass
def f(x):
    frame = sys._getframe()
    while frame is not None:
        frame.f_trace = hang
        frame = frame.f_back
    sys.settrace(hang)
    return 0
""",
    ),
    Attack(
        "core_dump",
        "die with a core file in the working directory",
        PRELUDE
        + r"""
import resource
def f(x):
    try: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except Exception: pass
    ctypes.string_at(0)
""",
        statuses=("crash", "skipped"),
    ),
    Attack(
        "read_stdin",
        "wait for input that nobody types",
        "import sys\ndef f(x):\n    return sys.stdin.read() or input()\n",
    ),
    Attack(
        "switch_interval",
        "starve every other thread of the guest, the one that answers included",
        "import sys, threading\nsys.setswitchinterval(1e6)\n"
        "def spin():\n    while True: pass\n"
        "def f(x):\n    threading.Thread(target=spin, daemon=True).start()\n    return 0\n",
    ),
)
