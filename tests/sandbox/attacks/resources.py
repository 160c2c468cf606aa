"""Programs that try to exhaust processes, memory, time, the stack and the compiler.

Each must end within its limits, and the next program must run.
"""

from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, Attack

ATTACKS = (
    Attack(
        "fork_bomb",
        "Fork in a loop.",
        PRELUDE
        + r"""
def f(x):
    def fork():
        return os.fork() >= 0
    attempt([("fork", fork)] * 50)
""",
        contained=True,
    ),
    Attack(
        "fork_by_syscall_number",
        "Fork with fork, vfork, clone and clone3 by number, past every Python wrapper.",
        PRELUDE
        + r"""
def f(x):
    def child(call):
        def run():
            if call() == 0:
                os._exit(0)
            return True
        return run
    clone_args = ctypes.create_string_buffer(88)
    attempt([
        ("fork", child(lambda: raw(57, None))),
        ("clone", child(lambda: raw(56, 220, 17, 0, 0, 0, 0))),
        ("clone_ns", child(lambda: raw(56, 220, 0x10000000 | 17, 0, 0, 0, 0))),
        ("clone3", child(lambda: raw(435, 435, clone_args, 88))),
    ])
""",
        contained=True,
    ),
    Attack(
        "spawn_with_libraries",
        "Start processes with subprocess, os.system, os.spawnv, posix_spawn, forkpty and multiprocessing.",
        PRELUDE
        + r"""
def f(x):
    import subprocess
    def pool():
        import multiprocessing
        process = multiprocessing.Process(target=print)
        process.start()
        return True
    attempt([
        ("popen", lambda: subprocess.Popen(["/bin/true"])),
        ("system", lambda: os.system("true") == 0),
        ("spawnv", lambda: os.spawnv(os.P_NOWAIT, "/bin/true", ["true"])),
        ("posix_spawn", lambda: os.posix_spawn("/bin/true", ["true"], {})),
        ("forkpty", lambda: os.forkpty()),
        ("multiprocessing", pool),
    ])
""",
        contained=True,
    ),
    Attack(
        "memory_list",
        "Allocate byte arrays of one gibibyte in total, eight times the limit.",
        PRELUDE
        + r"""
def f(x):
    def hoard():
        held = []
        for _ in range(64):
            held.append(bytearray(b"x") * (16 << 20))
        return len(held)
    attempt([("gibibyte", hoard)])
""",
        contained=True,
    ),
    Attack(
        "memory_error_ignored",
        "Allocate in an endless loop that ignores MemoryError.",
        "def f(x):\n    held = []\n    while True:\n        try:\n            held.append(bytearray(1 << 20))\n"
        "        except MemoryError:\n            pass\n",
    ),
    Attack(
        "memory_mmap",
        "Allocate with anonymous and shared mappings, mremap and brk.",
        PRELUDE
        + r"""
def f(x):
    def mapped(flags):
        def run():
            libc.mmap.restype = ctypes.c_void_p
            for _ in range(16):
                address = libc.mmap(None, ctypes.c_size_t(64 << 20), 3, flags, -1, ctypes.c_long(0))
                if address == ctypes.c_void_p(-1).value: return None
                ctypes.memset(address, 1, 1 << 20)
            return True
        return run
    def grown():
        libc.mremap.restype = libc.mmap.restype = ctypes.c_void_p
        address = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, 0x22, -1, ctypes.c_long(0))
        moved = libc.mremap(ctypes.c_void_p(address), ctypes.c_size_t(1 << 20), ctypes.c_size_t(1 << 30), 1)
        return moved != ctypes.c_void_p(-1).value or None
    def broken():
        libc.sbrk.restype = ctypes.c_void_p
        return libc.sbrk(ctypes.c_long(1 << 30)) != ctypes.c_void_p(-1).value or None
    attempt([("shared", mapped(0x21)), ("private", mapped(0x22)), ("no reserve", mapped(0x4022)), ("grown", grown),
             ("brk", broken)])
""",
        contained=True,
    ),
    Attack(
        "memory_outside_address_space",
        "Use memory that an address-space limit does not count: memfd, shm, System V, huge pipe buffers.",
        PRELUDE
        + r"""
def f(x):
    import fcntl
    def memfd():
        fd = os.memfd_create("x")
        for _ in range(64):
            os.write(fd, b"x" * (4 << 20))
        return True
    def shm():
        fd = os.open("/dev/shm/marl_ray_attack", os.O_CREAT | os.O_RDWR)
        return os.write(fd, b"x" * (1 << 20)) > 0
    def pipes():
        return fcntl.fcntl(os.pipe()[1], 1031, 1 << 20) > 65536
    attempt([
        ("memfd", memfd), ("shm", shm), ("pipes", pipes),
        ("shmget", true(lambda: raw(29, 194, 0, 1 << 28, 0o1600))),
        ("msgget", true(lambda: raw(68, 186, 0, 0o1600))),
        ("memfd_secret", true(lambda: raw(447, 447, 0))),
    ])
""",
        contained=True,
    ),
    Attack("memory_text", "Build a string of a terabyte.", "def f(x): return 'x' * 10**12\n"),
    Attack("memory_range", "Build a list of a terabyte.", "def f(x): return list(range(10**12))\n"),
    Attack(
        "memory_zip_bomb",
        "Decompress a few kilobytes into four gibibytes.",
        r"""
import zlib
def f(x):
    packer = zlib.compressobj(9)
    block = b"\0" * (1 << 22)
    bomb = b"".join(packer.compress(block) for _ in range(64)) + packer.flush()
    held = []
    for _ in range(16):
        held.append(zlib.decompress(bomb))
    return len(held)
""",
    ),
    Attack(
        "memory_thread_stacks",
        "Start threads with stacks of a gibibyte.",
        PRELUDE
        + r"""
import _thread, threading
def f(x):
    _thread.stack_size(1 << 30)
    def start():
        event = threading.Event()
        threading.Thread(target=event.wait, daemon=True).start()
        return True
    attempt([("stack", start)] * 4)
""",
        contained=True,
    ),
    Attack(
        "loop_catches_everything",
        "Loop endlessly and catch every exception.",
        "def f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass\n",
        statuses=("timeout", "skipped", "crash"),
    ),
    Attack(
        "loop_blocks_signals",
        "Loop endlessly with every signal blocked or ignored.",
        r"""
import signal
def f(x):
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True: pass
""",
        statuses=("timeout", "skipped", "crash"),
    ),
    Attack(
        "loop_in_c", "Loop in C code that never returns to the interpreter.", "def f(x): return sum(range(10**14))\n"
    ),
    Attack(
        "loop_bignum", "Compute one arithmetic operation that takes hours.", "def f(x): return len(str(10**10**9))\n"
    ),
    Attack(
        "loop_regex",
        "Match a regular expression that backtracks without end.",
        "import re\ndef f(x): return re.match(r'(a+)+$', 'a' * 64 + 'b')\n",
        statuses=("timeout", "skipped", "crash"),
    ),
    Attack("loop_at_import", "Loop endlessly before `f` is defined.", "while True: pass\n"),
    Attack(
        "sleep",
        "Sleep for a year.",
        "import time\ndef f(x): time.sleep(3e7)\n",
        statuses=("timeout", "skipped"),
    ),
    Attack(
        "deadlock",
        "Wait for a lock that the same thread holds.",
        "import threading\nlock = threading.Lock()\ndef f(x):\n    lock.acquire(); lock.acquire()\n",
        statuses=("timeout", "skipped"),
    ),
    Attack(
        "wait_on_pipe",
        "Read from a pipe that never receives data.",
        "import os\ndef f(x):\n    r, w = os.pipe()\n    return os.read(r, 1)\n",
        statuses=("timeout", "skipped"),
    ),
    Attack(
        "recursion",
        "Recurse without end.",
        "def f(x): return f(x)\n",
        statuses=("error", "crash", "skipped"),
    ),
    Attack(
        "recursion_unlimited",
        "Remove Python's recursion limit and recurse until the C stack overflows.",
        "import sys\nsys.setrecursionlimit(2**31 - 1)\nclass A:\n    def __repr__(self): return repr(self)\n"
        "def f(x): return repr(A())\n",
    ),
    Attack(
        "recursion_nested_data",
        "Return data so deep that walking, printing or freeing it overflows the stack.",
        "def f(x):\n    deep = []\n    for _ in range(10**6): deep = [deep]\n    return deep\n",
    ),
    Attack(
        "compile_parentheses",
        "Evaluate a hundred thousand open parentheses.",
        "def f(x): return eval('(' * 10**5)\n",
    ),
    Attack(
        "source_parentheses",
        "Submit a source with a hundred thousand nested parentheses.",
        "f = " + "(" * 10**5 + ")" * 10**5,
    ),
    Attack(
        "source_unary",
        "Submit a source with a hundred thousand nested unary operators.",
        "f = lambda x: " + "-" * 10**5 + "1\n",
    ),
    Attack(
        "source_attributes",
        "Submit a source with a chain of a hundred thousand attributes.",
        "f = lambda x: x" + ".a" * 10**5 + "\n",
    ),
    Attack(
        "source_sum",
        "Submit a source with a sum of a hundred thousand terms.",
        "f = lambda x: " + "+".join(["1"] * 10**5) + "\n",
    ),
    Attack(
        "source_blocks",
        "Submit a source with blocks nested as deep as indentation allows.",
        "".join(" " * i + "if 1:\n" for i in range(99)) + " " * 99 + "def f(x): return 1\n",
    ),
    Attack(
        "source_digits",
        "Submit a source with a number literal of a million digits.",
        "f = lambda x: " + "9" * 10**6 + "\n",
    ),
    Attack(
        "source_odd_characters",
        "Submit a source with a NUL, a surrogate and a byte order mark.",
        "\ufefff = lambda x: 1 # \0 \ud800\n",
    ),
    Attack(
        "source_codec",
        "Submit a source that declares UTF-7 as its encoding.",
        "# -*- coding: utf-7 -*-\n+AGY- = lambda x: 1\n",
    ),
)
