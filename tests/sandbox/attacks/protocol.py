"""Programs that send their own bytes to the judge, or return giant, deep, cyclic, slow or late values.

The judge must survive, and no test may pass.
"""

# ruff: noqa: E501 (lines of the hostile programs)
from __future__ import annotations

from tests.sandbox.attacks.attack import SOCKETS, Attack

COMPUTED_IN_C = {"test_cpu_s": 1.0, "test_wall_s": 10.0, "program_wall_s": 30.0, "memory_mb": 512}
"""The guest builds its value within the CPU limit; the judge cannot compute with it."""
BIG = {"test_cpu_s": 1.0, "test_wall_s": 2.0, "program_wall_s": 4.0}

ATTACKS = (
    Attack(
        "garbage",
        "Send random bytes to the judge during a call.",
        SOCKETS + "def f(x):\n    shout(os.urandom(5000))\n    return 0\n",
    ),
    Attack(
        "garbage_at_import",
        "Send random bytes to the judge before the tests.",
        SOCKETS + "shout(os.urandom(5000))\ndef f(x): return 0\n",
    ),
    Attack(
        "garbage_text",
        "Send text that resembles a reply.",
        SOCKETS + "def f(x):\n    shout(frame(b'[\"' + b'a' * 16 + b'\", \"pass\"'))\n    return 0\n",
    ),
    Attack(
        "header_giant",
        "Announce a frame of four gibibytes.",
        SOCKETS + "def f(x):\n    shout(b'\\xff\\xff\\xff\\xff' + b'x' * 1000)\n    time.sleep(60)\n",
    ),
    Attack(
        "header_only",
        "Announce a frame and send nothing.",
        SOCKETS + "def f(x):\n    shout(struct.pack('<I', 1000))\n    time.sleep(60)\n",
        statuses=("timeout", "crash", "skipped"),
    ),
    Attack(
        "frames_empty",
        "Send a million empty frames.",
        SOCKETS + "def f(x):\n    shout(b'\\0\\0\\0\\0' * 10**6)\n    return 0\n",
    ),
    Attack(
        "frames_every_verdict",
        'Send every message that might mean "pass", before and during a call.',
        SOCKETS
        + r"""
words = ["pass", "passed", "ok", "p", "r", "result", "done", "P", True, 0, 1]
shapes = [s for w in words for s in ([w], [w, None], [w, 0], [w, None, None], ["", w, None, None], {"status": w},
          {"op": w, "value": True}, {"tests": [{"status": w}], "passed": 2, "total": 2}, w)]
for s in shapes: shout(frame(s))
def f(x):
    for s in shapes: shout(frame(s))
    return 0
""",
    ),
    Attack(
        "nonce_stolen",
        "Find the nonce of the request in the calling frames and answer with it.",
        SOCKETS
        + r"""
import sys
def words(thing, depth=0):
    if type(thing) is str and 4 <= len(thing) <= 64: yield thing
    elif type(thing) is int and thing > 1 << 16: yield thing
    elif type(thing) in (list, tuple) and depth < 3:
        for part in thing: yield from words(part, depth + 1)
    elif type(thing) is dict and depth < 2:
        for part in list(thing.values()): yield from words(part, depth + 1)
def f(x):
    frame_ = sys._getframe(1)
    found = set()
    while frame_ is not None:
        found.update(words(frame_.f_locals))
        frame_ = frame_.f_back
    for nonce in list(found)[:200]:
        for rest in (["r", True, None], ["pass"], ["p", 0], ["ok", True], {"value": True}):
            shout(frame([nonce] + rest if type(rest) is list else {"nonce": nonce, **rest}))
    return 0
""",
    ),
    Attack(
        "reply_twice",
        "Keep sending replies from a thread after the reply.",
        SOCKETS
        + r"""
def spam(seen=[]):
    while True:
        try: shout(frame(["x", "r", "spam", None]))
        except OSError: time.sleep(0.001)
def f(x):
    threading.Thread(target=spam, daemon=True).start()
    return 0
""",
    ),
    Attack(
        "replay",
        "Record the guest's frames and send them again for the next request.",
        SOCKETS
        + r"""
import sys
sent = []
def record(name):
    original = getattr(socket.socket, name)
    def wrapped(self, data, *rest):
        sent.append(bytes(data))
        return original(self, data, *rest)
    return wrapped
try:
    write = os.write
    os.write = lambda fd, data: (sent.append(bytes(data)), write(fd, data))[1]
except Exception: pass
def f(x):
    for data in sent:
        for fd in sockets(): write(fd, data)
    return 0
""",
    ),
    Attack(
        "requests_stolen",
        "Read the judge's requests in a thread before the guest does.",
        SOCKETS
        + r"""
def steal():
    while True:
        for fd in sockets():
            try: os.read(fd, 100000)
            except OSError: pass
threading.Thread(target=steal, daemon=True).start()
def f(x): return 0
""",
    ),
    Attack(
        "socket_closed",
        "Close the socket to the judge and keep running.",
        SOCKETS + "def f(x):\n    for fd in sockets(): os.close(fd)\n    while True: time.sleep(1)\n",
        statuses=("crash", "timeout", "skipped"),
    ),
    Attack(
        "socket_half_closed",
        "Shut down one direction of the socket and keep running.",
        SOCKETS + "def f(x):\n    for fd in sockets(): wrap(fd).shutdown(socket.SHUT_RD)\n    time.sleep(60)\n",
        statuses=("crash", "timeout", "skipped"),
    ),
    Attack(
        "socket_replaced",
        "Replace the socket to the judge by another socket.",
        SOCKETS + "def f(x):\n    a, b = socket.socketpair()\n    for fd in sockets():\n"
        "        if fd not in (a.fileno(), b.fileno()): os.dup2(a.fileno(), fd)\n    return 0\n",
        statuses=("crash", "timeout", "skipped"),
    ),
    Attack(
        "reply_slow",
        "Send a reply one byte at a time.",
        SOCKETS
        + "def f(x):\n    for byte in frame(['x'] * 100):\n        shout(bytes([byte]))\n        time.sleep(0.1)\n",
        statuses=("timeout", "crash", "skipped"),
    ),
    Attack(
        "request_never_read",
        "Never read a long argument, so that the judge blocks while sending.",
        SOCKETS + "time.sleep(60)\ndef f(x): return 0\n",
        tests=("assert f('x' * 3000000) == '@WANTED@'",),
        statuses=("timeout", "crash", "skipped"),
    ),
    Attack(
        "value_deep",
        "Send a frame nested a hundred thousand levels deep.",
        SOCKETS
        + "def f(x):\n    shout(frame(b'[' * 10**5))\n    shout(frame(b'[' * 10**5 + b']' * 10**5))\n    return 0\n",
    ),
    Attack(
        "value_deep_returned",
        "Return tuples and dicts nested thousands of levels deep.",
        "def f(x):\n    deep = ()\n    for _ in range(5000): deep = (deep,) if x == 1 else {'k': deep}\n    return deep\n",
    ),
    Attack(
        "value_cyclic", "Return a list that contains itself.", "def f(x):\n    a = []\n    a.append(a)\n    return a\n"
    ),
    Attack(
        "value_cyclic_dict",
        "Return a dict that contains itself.",
        "def f(x):\n    d = {}\n    d['d'] = (d, [d])\n    return d\n",
    ),
    Attack(
        "value_billion_laughs",
        "Return lists of ten references to the same list, twelve levels deep.",
        "def f(x):\n    a = [1] * 10\n    for _ in range(12): a = [a] * 10\n    return a\n",
        limits=BIG,
    ),
    Attack(
        "value_huge_text", "Return a string of a hundred megabytes.", "def f(x): return 'x' * (96 << 20)\n", limits=BIG
    ),
    Attack(
        "value_huge_int", "Return an integer of a hundred million bits.", "def f(x): return 1 << 10**8\n", limits=BIG
    ),
    Attack(
        "value_unprintable_int",
        "Return an integer with more digits than Python prints.",
        "def f(x): return 10**5000 if x == 1 else [-(10**9000)]\n",
        statuses=("fail", "error"),
    ),
    Attack(
        "value_collisions",
        "Return integers with equal hashes, so that a set of them takes quadratic time.",
        "M = 2**61 - 1\ndef f(x):\n    return [n * M for n in range(8000)]\n",
        tests=("assert set(f(1)) == {'@WANTED@'}",),
        limits=BIG,
    ),
    Attack(
        "value_collisions_counted",
        "Return integers with equal hashes, which `Counter` counts in C code in quadratic time.",
        "M = 2**61 - 1\ndef f(x):\n    return [n * M for n in range(1, 60000)]\n",
        tests=("from collections import Counter\nassert Counter(f(1)) == '@WANTED@'", "assert f(1) == '@WANTED@'"),
        limits=COMPUTED_IN_C,
        statuses=("timeout", "skipped"),
    ),
    Attack(
        "value_lists_summed",
        "Return lists whose sum copies each list again and again in C code.",
        "def f(x): return [[0] * 40 for _ in range(50000)]\n",
        tests=("assert sum(f(1), []) == '@WANTED@'", "assert f(1) == '@WANTED@'"),
        limits=COMPUTED_IN_C,
        statuses=("timeout", "skipped"),
    ),
    Attack(
        "value_range_giant",
        "Return a range that is small to send and endless to iterate.",
        "def f(x): return range(10**15)\n",
        tests=("assert sum(f(1)) == '@WANTED@'",),
        statuses=("timeout", "error", "crash", "fail", "skipped"),
    ),
    Attack(
        "value_exponent_giant",
        "Return a Decimal that is small to send and fills the memory as an integer.",
        "import decimal\ndef f(x): return decimal.Decimal('1e999999999')\n",
        tests=("assert int(f(1)) == '@WANTED@'",),
        statuses=("timeout", "error", "crash", "fail", "skipped"),
    ),
    Attack(
        "value_repeat_giant",
        "Return a huge number with which the test multiplies a string.",
        "def f(x): return 10**12\n",
        tests=("assert 'ab' * f(1) == '@WANTED@'", "assert 2 ** f(1) == '@WANTED@'"),
        statuses=("timeout", "error", "crash", "fail", "skipped"),
    ),
    Attack(
        "value_iterator_endless",
        "Return iterators that never end, or end with KeyboardInterrupt.",
        "import itertools\ndef g():\n    yield 1\n    raise KeyboardInterrupt\ndef f(x): return itertools.count() if x == 1 else g()\n",
        tests=("assert list(f(1)) == ['@WANTED@']", "assert list(f(2)) == ['@WANTED@']"),
    ),
    Attack(
        "value_object_endless",
        "Return an object that can be iterated and indexed without end.",
        "class T:\n    def __iter__(self): return self\n    def __next__(self): return self\n    def __len__(self): return 2**62\n"
        "    def __getitem__(self, i): return self\n    def __getattr__(self, n): return self\n    def __call__(self, *a): return self\n"
        "def f(x): return T()\n",
        tests=("assert list(f(1)) == ['@WANTED@']", "assert [y for y in f(1)] == ['@WANTED@']"),
    ),
    Attack(
        "value_characters",
        "Return surrogates, NUL, NaN and infinities.",
        "def f(x): return '\\ud800\\x00\\U0010ffff' if x == 1 else ['\\udfff' * 1000, float('nan'), -0.0, float('inf')]\n",
        statuses=("fail",),
    ),
    Attack(
        "value_type_name_huge",
        "Return an object whose class name has ten megabytes and newlines.",
        "def f(x): return type('pass\\n' * 2 * 10**6, (), {})()\n",
    ),
    Attack(
        "exception_text_hostile",
        "Raise exceptions whose text raises or loops.",
        "class A(Exception):\n    def __str__(self): raise KeyboardInterrupt\nclass B(Exception):\n    def __str__(self):\n        while True: pass\n"
        "def f(x): raise (A() if x == 1 else B())\n",
    ),
    Attack(
        "exception_text_huge",
        "Raise an exception with a text of a hundred megabytes.",
        "def f(x): raise ValueError('x' * 10**8 if x == 1 else '\\x1b' * 10**7)\n",
        limits=BIG,
    ),
    Attack(
        "exception_hostile",
        "Raise an exception whose class, line number and causes are forged.",
        r"""
class Meta(type):
    @property
    def __name__(cls): raise SystemExit
    @property
    def __mro__(cls): return [int] * 10**6
class E(SyntaxError, metaclass=Meta):
    lineno = property(lambda self: 1 << 100)
    __traceback__ = property(lambda self: self)
    __cause__ = property(lambda self: self)
    args = property(lambda self: self)
def f(x): raise E()
""",
    ),
    Attack(
        "exception_chain",
        "Raise an exception with a chain of a hundred thousand causes.",
        "def f(x):\n    e = None\n    for _ in range(10**5):\n        n = ValueError()\n        n.__cause__ = e\n        e = n\n    raise e\n",
    ),
    Attack(
        "exception_group_deep",
        "Raise exception groups nested ten thousand levels deep.",
        "def f(x):\n    e = ValueError()\n    for _ in range(10**4): e = ExceptionGroup('g', [e])\n    raise e\n",
    ),
    Attack(
        "reply_at_limit",
        "Return strings of growing size around one mebibyte, many times.",
        "import sys\nsizes = iter(range(10**6))\ndef f(x): return 'y' * ((1 << 20) - 40 + next(sizes))\n",
        tests=("assert [f(1) for _ in range(60)] == ['@WANTED@']",),
        limits=BIG,
    ),
)
