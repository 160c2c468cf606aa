"""Programs that attack the end of scripts, the thread limit, the compiler and local sockets.

No test may pass, and every operation must be denied.
"""

from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, SOCKETS, Attack

_PAIRS = ('{"stdin": "1\\n", "stdout": "@WANTED@\\n"}', '{"stdin": "2\\n", "stdout": "@WANTED@ @WANTED@\\n"}')


def script(name: str, purpose: str, source: str, **more: object) -> Attack:
    return Attack(name, purpose, source, _PAIRS, **more)  # type: ignore[arg-type]


ATTACKS = (
    script(
        "script_sends_verdict",
        "Send a passing verdict to the judge before exiting.",
        SOCKETS
        + r"""
shout(frame(["nonce", "ok", None]))
shout(frame(["nonce", "ok", [True, "pass", None]]))
os._exit(0)
""",
        statuses=("fail", "crash", "skipped"),
    ),
    script(
        "script_closes_connection",
        "Close the connection to the judge and loop endlessly.",
        "import os\nos.closerange(3, 64)\nwhile True: pass\n",
        statuses=("crash", "fail", "timeout", "skipped"),
    ),
    script(
        "script_floods_judge",
        "Write to the judge endlessly instead of exiting.",
        "import os, threading\ndef flood():\n    while True: os.write(3, b'x' * 65536)\n"
        "threading.Thread(target=flood).start()\n",
        statuses=("crash", "timeout", "skipped"),
    ),
    script(
        "script_thread_never_ends",
        "Keep a non-daemon thread alive.",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n",
        statuses=("timeout", "skipped"),
    ),
    script(
        "script_exit_handler_loops",
        "Register an exit handler that loops and registers itself again.",
        "import atexit\ndef again():\n    atexit.register(again)\n    while True: pass\natexit.register(again)\n",
        statuses=("timeout", "skipped"),
    ),
    script(
        "script_object_resurrects",
        "Create an object whose finaliser loops and creates another.",
        "class A:\n    def __del__(self):\n        global a\n"
        "        a = type(self)()\n        while True: pass\na = A()\n",
        statuses=("timeout", "skipped"),
    ),
    script(
        "script_patches_exit",
        "Patch the functions that run at exit, then fail.",
        "import atexit, gc, os, sys, threading\nold = os._exit\n"
        "def ending(status): old(0)\nos._exit = ending\nthreading._shutdown = lambda: old(0)\n"
        "atexit._run_exitfuncs = lambda: None\ngc.collect = lambda *a: None\nraise ValueError\n",
        statuses=("fail", "skipped"),
    ),
    script(
        "script_fills_stderr",
        "Write hundreds of megabytes to standard error.",
        "import os, sys\nfor _ in range(200):\n    try:\n        os.write(2, b'x' * (1 << 20))\n"
        "        sys.stderr.write('y' * (1 << 20))\n    except OSError:\n        pass\n",
        statuses=("fail", "crash", "timeout", "skipped"),
    ),
    script(
        "script_searches_answer",
        "Search memory and descriptors for the expected output.",
        PRELUDE
        + r"""
import gc
found = []
for fd in range(0, 64):
    try:
        found.append(os.pread(fd, 1 << 20, 0))
    except OSError:
        pass
texts = [x for x in gc.get_objects() if isinstance(x, str)] + [b.decode("utf-8", "replace") for b in found]
for text in texts:
    if WANTED in text:
        print(text[text.index(WANTED):][:29])
attempt([("wanted", lambda: any(WANTED in text for text in texts))])
""",
        contained=True,
    ),
    Attack(
        "small_threads",
        "Start a thousand threads with stacks too small for a memory limit to count.",
        PRELUDE
        + r"""
import threading
def f(x):
    threading.stack_size(32768)
    event, started = threading.Event(), 0
    def many():
        nonlocal started
        try:
            for started in range(1000):
                threading.Thread(target=event.wait, daemon=True).start()
        finally:
            event.set()
        return True
    before = threading.active_count()
    try:
        attempt([("a thousand", many)])
    finally:
        if started > 300:
            raise RuntimeError(f"ESCAPED with {started} threads")
""",
        contained=True,
    ),
    Attack(
        "thread_limit_answered",
        "Answer the kernel's thread notifications in place of the zygote.",
        PRELUDE
        + r"""
import fcntl
def f(x):
    def receive(fd): return lambda: fcntl.ioctl(fd, 0xC0502100, bytearray(80)) is not None
    def send(fd): return lambda: fcntl.ioctl(fd, 0xC0182101, bytearray(24)) is not None
    def another():
        header = (ctypes.c_char * 16)()
        return raw(317, 277, 1, 8, ctypes.byref(header)) >= 0
    attempt([(f"{what.__name__} {fd}", what(fd)) for fd in range(64) for what in (receive, send)] + [("own", another)])
""",
        contained=True,
    ),
    Attack(
        "unusual_message_flags",
        "Use unusual flags of local sockets.",
        PRELUDE
        + r"""
import socket
def f(x):
    a, b = socket.socketpair()
    a.send(b"plain"); b.recv(2, socket.MSG_PEEK); b.recv(5)
    flags = (1, 4, 0x10, 0x200, 0x2000, 0x10000, 0x40000, 0x4000000, 0x8000000, 0x20000000)
    def send(flag): return lambda: a.send(b"x", flag)
    def sendmsg(flag): return lambda: a.sendmsg([b"x"], [], flag)
    def recv(flag): return lambda: (a.send(b"x"), b.recv(1, flag))
    def recvmsg(flag): return lambda: (a.send(b"x"), b.recvmsg(1, 0, flag))
    attempt([(f"{what.__name__} {flag:x}", what(flag)) for flag in flags for what in (send, sendmsg, recv, recvmsg)])
""",
        contained=True,
    ),
    Attack(
        "compile_alternatives",
        "Compile pattern alternatives that bind thousands of names, which takes gigabytes.",
        "def f(x):\n    match x:\n        case "
        + "|".join("[" + ",".join(f"a{(i * step) % 4001}" for i in range(1, 4001)) + "]" for step in (1, 4000))
        + ":\n            return 1\n",
        statuses=("error", "skipped", "crash", "timeout"),
    ),
)
