"""Programs that search for expected values, leave state for the next program, or attack other forms of tests.

None may find a value, and the next program must find no trace.
"""

# ruff: noqa: E501 (lines of the hostile programs)
from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, SOCKETS, Attack

FIND_IN_OBJECTS = r'''
def find(thing, depth=0, seen=None):
    """Return the first wanted word in nested builtin containers."""
    seen = set() if seen is None else seen
    if id(thing) in seen or depth > 6: return None
    seen.add(id(thing))
    if type(thing) is bytes: thing = thing.decode("latin-1")
    if type(thing) is str:
        at = thing.find(WANTED)
        while at >= 0:
            word = thing[at:at + 29]
            if len(word) == 29 and word[5:].isalnum(): return word
            at = thing.find(WANTED, at + 1)
        return None
    if type(thing) is dict: parts = list(thing.keys()) + list(thing.values())
    elif type(thing) in (list, tuple, set, frozenset): parts = list(thing)
    elif type(thing).__name__ == "function": parts = [thing.__code__.co_consts, thing.__closure__ or ()]
    elif type(thing).__name__ == "code": parts = list(thing.co_consts)
    elif type(thing).__name__ == "cell":
        try: parts = [thing.cell_contents]
        except ValueError: return None
    else: return None
    for part in parts:
        word = find(part, depth + 1, seen)
        if word: return word
'''

ATTACKS = (
    Attack(
        "answers_in_frames",
        "Search the calling frames for the expected value.",
        PRELUDE
        + FIND_IN_OBJECTS
        + r"""
def f(x):
    frame = sys._getframe(1)
    while frame is not None:
        word = find(frame.f_locals) or find(frame.f_globals) or find(frame.f_code.co_consts)
        if word: return word if x == 1 else [word]
        frame = frame.f_back
""",
    ),
    Attack(
        "answers_in_objects",
        "Search every object of the process for the expected value.",
        PRELUDE
        + FIND_IN_OBJECTS
        + r"""
import gc
def f(x):
    gc.unfreeze()
    for thing in gc.get_objects():
        word = find(thing, 4)
        if word: return word if x == 1 else [word]
""",
        limits={"test_cpu_s": 2.0, "test_wall_s": 4.0, "program_wall_s": 8.0},
    ),
    Attack(
        "answers_in_memory",
        "Scan the memory of the process for the expected value.",
        PRELUDE
        + r"""
import gc
def f(x):
    needle = WANTED.encode()
    r, w = os.pipe()
    os.set_blocking(r, False); os.set_blocking(w, False)
    def page(address):
        size = libc.write(w, ctypes.c_void_p(address), ctypes.c_size_t(4096))
        return os.read(r, 4096) if size > 0 else b""
    top = ctypes.addressof(ctypes.c_char_p(b"x"))
    regions = {id(thing) >> 20 for thing in gc.get_objects()} | {(top >> 20) + n for n in range(-16, 16)}
    pages = 0
    for region in regions:
        for n in range(256):
            data = page((region << 20) + n * 4096)
            pages += bool(data)
            at = data.find(needle)
            while at >= 0:
                word = data[at:at + 29]
                if len(word) == 29 and word[5:].isalnum():
                    word = word.decode()
                    return word if x == 1 else [word]
                at = data.find(needle, at + 1)
    raise RuntimeError(f"CONTAINED {pages} pages")
""",
        contained=True,
        limits={"test_cpu_s": 4.0, "test_wall_s": 8.0, "program_wall_s": 12.0},
        tests=("assert f(1) == '@WANTED@'",),
    ),
    Attack(
        "answers_in_files",
        "Search command lines, open files and source caches for the tests.",
        PRELUDE
        + r"""
def f(x):
    def read(path):
        def run():
            with open(path, "rb") as file: return WANTED.encode() in file.read(1 << 20) or None
        return run
    import linecache
    paths = [f"/proc/{pid}/{name}" for pid in ("self", os.getppid(), 1, 2, 3, "@HOST_PID@")
             for name in ("cmdline", "environ", "mem", "fd/0", "fd/3", "fd/4", "fd/5")]
    attempt([(path, read(path)) for path in paths] + [("cache", lambda: WANTED in repr(linecache.cache) or None)])
""",
        contained=True,
    ),
    Attack(
        "answers_in_descriptors",
        "Read every open descriptor for expected values and output of other programs.",
        PRELUDE
        + r"""
def f(x):
    def read(fd):
        return lambda: any(word in os.pread(fd, 1 << 20, 0) for word in (WANTED.encode(), SECRET.encode())) or None
    attempt([(str(fd), read(fd)) for fd in range(0, 64)])
""",
        contained=True,
    ),
    Attack(
        "arguments_remembered",
        "Collect the arguments of all tests, because later ones may contain answers of earlier ones.",
        "seen = []\ndef f(x):\n    seen.append(x)\n    return seen[-1]\n",
        tests=("assert f('a') == '@WANTED@'", "assert f(['b']) == ['@WANTED@']"),
    ),
    Attack(
        "arguments_mutated",
        "Change an argument that the test compares with afterwards.",
        "def f(x):\n    x.clear()\n    return x\n",
        tests=(
            "data = ['@WANTED@']\nassert f(data) == ['@WANTED@']",
            "want = ['@WANTED@']\nassert f(list(want)) == want",
        ),
    ),
    Attack(
        "arguments_made_cyclic",
        "Make an argument contain itself and grow.",
        "def f(x):\n    x.append(x)\n    x.append([0] * 10**6)\n    return 0\n",
        tests=("a = [1]\nassert f(a) == '@WANTED@'",),
    ),
    Attack(
        "state_left",
        "Leave marks in builtins, modules, environment, signals and files for the next program.",
        r"""
import builtins, sys, os, random, json, atexit, linecache, threading, decimal, signal, gc
MARK = "planted by another program"
def f(x):
    builtins.planted = MARK
    sys.planted = MARK
    sys.modules["planted"] = sys
    os.environ["PLANTED"] = MARK
    json.planted = MARK
    json.dumps = lambda *a, **k: MARK
    linecache.cache["planted"] = (1, None, [MARK], "planted")
    decimal.getcontext().prec = 3
    random.seed(1)
    sys.setrecursionlimit(100)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    gc.disable()
    os.umask(0)
    print("printed by another program", flush=True)
    os.write(1, b"printed by another program")
    try: open("/tmp/planted", "w").write(MARK)
    except OSError: pass
    return 0
""",
        after=PRELUDE
        + r"""
import builtins, random, json, linecache, decimal, signal, gc
def f(x):
    def output():
        return b"another program" in os.pread(1, 65536, 0) or None
    attempt([
        ("builtins", lambda: builtins.planted), ("sys", lambda: sys.planted), ("module", lambda: sys.modules["planted"]),
        ("environment", lambda: os.environ["PLANTED"]), ("json", lambda: json.planted),
        ("dumps", lambda: json.dumps(1) != "1"), ("linecache", lambda: linecache.cache["planted"]),
        ("decimal", lambda: decimal.getcontext().prec == 3), ("recursion", lambda: sys.getrecursionlimit() == 100),
        ("signal", lambda: signal.getsignal(signal.SIGALRM) == signal.SIG_IGN),
        ("file", lambda: open("/tmp/planted").read()), ("output", output),
    ])
""",
    ),
    Attack(
        "kernel_objects_left",
        "Leave data in kernel objects: keys, semaphores, message queues, abstract sockets.",
        PRELUDE
        + r"""
import socket
def f(x):
    def bind():
        s = socket.socket(socket.AF_UNIX)
        s.bind("\0planted")
        return True
    attempt([("add_key", true(lambda: raw(248, 217, b"user", b"planted", b"x", 1, -3))),
             ("semget", true(lambda: raw(64, 190, 7, 1, 0o1600))), ("mq_open", true(lambda: raw(240, 180, b"planted", 66, 438, None))),
             ("bind", bind), ("shm", lambda: os.open("/dev/shm/planted", os.O_CREAT | os.O_RDWR))])
""",
        contained=True,
    ),
    Attack(
        "stdio_forged",
        "Print a verdict, close stdout and exit with status 0 in the stdin/stdout form.",
        "import os, sys\nprint('pass')\nprint('@' * 3)\nsys.stdout.flush()\nos.close(1)\nos._exit(0)\n",
        tests=('{"stdin": "1\\n", "stdout": "@WANTED@\\n"}',),
        program={"form": "stdio", "entry_point": ""},
    ),
    Attack(
        "stdio_search",
        "Search memory for the expected output in the stdin/stdout form.",
        PRELUDE
        + FIND_IN_OBJECTS
        + "import gc\ngc.unfreeze()\nfor thing in gc.get_objects():\n    word = find(thing, 4)\n"
        "    if word:\n        print(word)\n        break\n",
        tests=('{"stdin": "1\\n", "stdout": "@WANTED@\\n"}',),
        program={"form": "stdio", "entry_point": ""},
        limits={"test_cpu_s": 2.0, "test_wall_s": 4.0, "program_wall_s": 8.0},
    ),
    Attack(
        "unittest_patched",
        "Disable every assertion of unittest, for tests that run in the guest; such a pass must be untrusted.",
        "import unittest\nfor name in dir(unittest.TestCase):\n    if name.startswith('assert'):\n"
        "        setattr(unittest.TestCase, name, lambda *a, **k: None)\nclass C:\n    def f(self): return 0\n",
        tests="import unittest\nclass TestC(unittest.TestCase):\n    def test_f(self):\n"
        "        self.assertEqual(C().f(), '@WANTED@')\n",
        program={"form": "unittest", "entry_point": "C"},
        untrusted=True,
    ),
    Attack(
        "unittest_exit",
        "Exit with status 0 in the first of the tests that run in the guest.",
        "import os\nclass C:\n    def f(self): os._exit(0)\n",
        tests="import unittest\nclass TestC(unittest.TestCase):\n    def test_f(self):\n"
        "        self.assertEqual(C().f(), '@WANTED@')\n    def test_g(self):\n        self.assertEqual(C().f(), 1)\n",
        program={"form": "unittest", "entry_point": "C"},
    ),
    Attack(
        "helper_replaced",
        "Redefine a helper of the problem's prompt.",
        "def helper(x): return '@' + 'WANTED' if False else 0\ndef f(x): return helper\n",
        tests=("assert helper(f(1)) == '@WANTED@'",),
        program={"prompt": 'def helper(x):\n    return x\n\ndef f(x):\n    """Return x."""\n'},
    ),
    Attack(
        "helper_equal",
        "Return an object that equals everything from a helper that only the program defines.",
        "class T:\n    def __eq__(self, other): return True\ndef helper(x): return T()\ndef f(x): return 0\n",
        tests=("assert helper(f(1)) == '@WANTED@'",),
    ),
    Attack(
        "zygote_commands",
        "Send fork requests to every socket, in case one leads to the zygote.",
        SOCKETS
        + r"""
def f(x):
    for command in (b"F", b"R", b"fork", b"Q", b"\0" * 24, b'{"op":"fork"}'):
        for fd in sockets():
            try: wrap(fd).send(command, socket.MSG_DONTWAIT)
            except OSError: pass
    return 0
""",
    ),
)
