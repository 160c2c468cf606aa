"""Programs that try to exhaust output, threads, descriptors, disk and timers, or that hang at exit.

Each must end within its limits, and the next program must run.
"""

from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, Attack

ATTACKS = (
    Attack(
        "print_flood",
        "Print in an endless loop.",
        "def f(x):\n    while True: print('x' * 10**4)\n",
    ),
    Attack(
        "print_flood_raw",
        "Write gigabytes to descriptors 1 and 2, past sys.stdout.",
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
        # RLIMIT_FSIZE may end the program with SIGXFSZ before it reports.
        statuses=("error", "crash", "timeout", "skipped"),
    ),
    Attack(
        "output_stretched",
        "Extend the file behind stdout to a terabyte without writing its contents.",
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
        "Overwrite captured output with terminal control sequences.",
        "import os\ndef f(x):\n    print('first', flush=True)\n    try: os.lseek(1, 0, 0)\n    except OSError: pass\n"
        "    os.write(1, b'\\x1b]0;owned\\x07\\xff\\xfe\\x00')\n    return 0\n",
    ),
    Attack(
        "threads",
        "Start ten thousand threads.",
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
        # The time limit may stop the test before the memory limit does.
        statuses=("error", "timeout", "crash", "skipped"),
    ),
    Attack(
        "threads_busy_after_reply",
        "Return from the call and leave busy threads behind.",
        "import threading\ndef spin():\n    while True: pass\n"
        "def f(x):\n    for _ in range(4): threading.Thread(target=spin, daemon=True).start()\n    return 0\n",
    ),
    Attack(
        "thread_at_exit",
        "Start a non-daemon thread that the interpreter would join at exit.",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\ndef f(x): return 0\n",
    ),
    Attack(
        "descriptors",
        "Open descriptors and pipes until none are left.",
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
        "Fill a file system: create and write a file in any writable folder.",
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
        "Raise resource limits, the priority and the scheduling class.",
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
        "Set a timer of one microsecond whose handler loops endlessly.",
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
        "realtime_signal_by_timer",
        "Send a real-time signal to itself with a kernel timer instead of kill().",
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
        statuses=("error",),
    ),
    Attack(
        "finaliser_loops",
        "Return while a finaliser and an exit handler never end.",
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
        "Install a garbage-collector callback that never returns.",
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
        "Install a trace function that never returns on the frames of the guest.",
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
        "Crash with core dumps enabled in the working directory.",
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
        "Wait for input that never arrives.",
        "import sys\ndef f(x):\n    return sys.stdin.read() or input()\n",
    ),
    Attack(
        "switch_interval",
        "Starve the guest's other threads, including the one that answers the judge.",
        "import sys, threading\nsys.setswitchinterval(1e6)\n"
        "def spin():\n    while True: pass\n"
        "def f(x):\n    threading.Thread(target=spin, daemon=True).start()\n    return 0\n",
    ),
)
