"""Standard library modules and codecs, threads, and state that could leak from one problem to the next."""

from tests.sandbox.honest.program_set import ProgramSet

LIBRARY = ProgramSet("library")
THREADS = ProgramSet("threads")
STATE = ProgramSet("state")

_IMPORTS = """
    import importlib
    def f(name):
        return importlib.import_module(name).__name__
"""

LIBRARY.asserts(
    "common_modules",
    _IMPORTS,
    *(
        f"assert f({name!r}) == {name!r}"
        for name in [
            "statistics",
            "hashlib",
            "struct",
            "textwrap",
            "csv",
            "sqlite3",
            "xml.dom.pulldom",
            "email.mime.text",
            "wsgiref.util",
            "tomllib",
            "http.cookies",
            "json.tool",
            "asyncio.streams",
            "logging.handlers",
            "unittest.mock",
            "lzma",
            "bz2",
            "difflib",
            "cmd",
            "code",
            "zipapp",
            "curses.ascii",
            "urllib.robotparser",
            "netrc",
            "mailbox",
            "chunk",
            "ftplib",
            "sched",
            "rlcompleter",
            "concurrent.futures.process",
        ]
    ),
)
LIBRARY.asserts(
    "imports_inside_functions",
    "def f(s):\n    import hashlib\n    return hashlib.sha256(s.encode()).hexdigest()[:8]\n"
    "def g(s):\n    from email.message import EmailMessage\n    m = EmailMessage()\n    m['Subject'] = s\n"
    "    return m['Subject']\n",
    "assert f('a') == 'ca978112'",
    "assert g('hello') == 'hello'",
)
LIBRARY.asserts(
    "codecs",
    "def f(s, name):\n    return s.encode(name)\ndef g(b, name):\n    return b.decode(name)\n",
    *(
        f"assert g(f('abc', {name!r}), {name!r}) == 'abc'"
        for name in [
            "utf-16",
            "utf-7",
            "cp1252",
            "koi8-r",
            "iso8859-15",
            "big5",
            "shift_jis",
            "gb18030",
            "euc-kr",
            "mac-roman",
            "cp037",
            "idna",
        ]
    ),
)
LIBRARY.asserts(
    "unicode_names",
    "import unicodedata\ndef f(c):\n    return unicodedata.name(c)\ndef g(s):\n"
    "    return unicodedata.normalize('NFD', s)\n",
    "assert f('é') == 'LATIN SMALL LETTER E WITH ACUTE'",
    "assert len(g('é')) == 2",
    "assert '\\N{SNOWMAN}' == '☃' and f('☃') == 'SNOWMAN'",
)
LIBRARY.asserts(
    "dates_from_text",
    "import datetime\ndef f(s, form):\n    return datetime.datetime.strptime(s, form)\n",
    "assert f('2024-03-01', '%Y-%m-%d').month == 3",
    "assert f('1 Mar 2024', '%d %b %Y').day == 1",
)
LIBRARY.asserts(
    "zip_in_memory",
    "import io, zipfile, gzip\ndef f(data):\n    b = io.BytesIO()\n    with zipfile.ZipFile(b, 'w') as z:\n"
    "        z.writestr('a.txt', data)\n    return zipfile.ZipFile(b).read('a.txt')\n"
    "def g(b):\n    return gzip.decompress(gzip.compress(b))\n",
    "assert f('hello') == b'hello'",
    "assert g(b'abc') == b'abc'",
)
LIBRARY.asserts(
    "database_in_memory",
    "import sqlite3\ndef f(rows):\n    c = sqlite3.connect(':memory:')\n    c.execute('create table t (x int)')\n"
    "    c.executemany('insert into t values (?)', [(r,) for r in rows])\n"
    "    return c.execute('select sum(x) from t').fetchone()[0]\n",
    "assert f([1, 2, 3]) == 6",
)
LIBRARY.asserts(
    "xml_and_html",
    "import xml.etree.ElementTree as ET, html\ndef f(s):\n    return [e.text for e in ET.fromstring(s)]\n"
    "def g(s):\n    return html.unescape(s)\n",
    "assert f('<a><b>x</b><b>y</b></a>') == ['x', 'y']",
    "assert g('&lt;&eacute;') == '<é'",
)
LIBRARY.asserts(
    "typing",
    "from __future__ import annotations\nfrom typing import get_type_hints, TypedDict, Protocol, Generic, TypeVar\n"
    "T = TypeVar('T')\nclass Box(Generic[T]):\n    def __init__(self, x: T) -> None:\n        self.x = x\n"
    "class Movie(TypedDict):\n    name: str\ndef f(b: Box[int], m: Movie) -> list[int]:\n    return [b.x]\n"
    "def hints():\n    return sorted(get_type_hints(f))\n",
    "assert f(Box(3), {'name': 'x'}) == [3]",
    "assert hints() == ['b', 'm', 'return']",
)
LIBRARY.asserts(
    "own_source",
    "import inspect\ndef f():\n    return inspect.getsource(f).splitlines()[0]\n",
    "assert f() == 'def f():'",
)
LIBRARY.asserts(
    "traceback_text",
    "import traceback\ndef f():\n    try:\n        1 / 0\n    except ZeroDivisionError:\n"
    "        return traceback.format_exc()\n",
    "assert f().strip().endswith('ZeroDivisionError: division by zero')",
    "assert 'in f' in f()",
)
LIBRARY.asserts(
    "temporary_file",
    "import tempfile\ndef f(s):\n    with tempfile.TemporaryFile('w+') as t:\n        t.write(s)\n        t.seek(0)\n"
    "        return t.read()\n",
    "assert f('x') == 'x'",
)
LIBRARY.asserts(
    "pickle_and_copy",
    "import pickle, copy\nclass A:\n    def __init__(self, x):\n        self.x = x\n"
    "def f(x):\n    return pickle.loads(pickle.dumps(A(x))).x\ndef g(x):\n    return copy.deepcopy(A(x)).x\n",
    "assert f([1]) == [1]",
    "assert g({'a': [2]}) == {'a': [2]}",
)
LIBRARY.asserts(
    "doctest",
    "import doctest\ndef f(x):\n    '''\n    >>> f(1)\n    2\n    '''\n    return x + 1\n"
    "def failures():\n    test = doctest.DocTestFinder().find(f, 'f', globs={'f': f})[0]\n"
    "    return doctest.DocTestRunner(verbose=False).run(test).failed\n",
    "assert failures() == 0",
)

THREADS.asserts(
    "a_hundred",
    """
    import threading
    def f(n):
        total, lock, ready = [0], threading.Lock(), threading.Barrier(n)
        def work():
            ready.wait()
            with lock:
                total[0] += 1
        threads = [threading.Thread(target=work) for _ in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return total[0]
    """,
    "assert f(4) == 4",
    "assert f(100) == 100",
)
THREADS.asserts(
    "pool",
    "from concurrent.futures import ThreadPoolExecutor\ndef f(xs):\n    with ThreadPoolExecutor(8) as pool:\n"
    "        return list(pool.map(lambda x: x * x, xs))\n",
    "assert f(range(50)) == [x * x for x in range(50)]",
)
THREADS.asserts(
    "producer_and_consumer",
    "import queue, threading\ndef f(n):\n    q, out = queue.Queue(5), []\n    def make():\n        for i in range(n):\n"
    "            q.put(i)\n        q.put(None)\n    t = threading.Thread(target=make)\n    t.start()\n"
    "    while (x := q.get()) is not None:\n        out.append(x)\n    t.join()\n    return out\n",
    "assert f(20) == list(range(20))",
)
THREADS.asserts(
    "in_the_background",
    "import threading\nresults = []\ndone = threading.Event()\ndef start():\n    def work():\n"
    "        results.append(1)\n"
    "        done.set()\n    threading.Thread(target=work, daemon=True).start()\ndef f():\n    done.wait(5)\n"
    "    return len(results)\n",
    "start()\nassert f() == 1",
)
THREADS.asserts(
    "timer_and_local",
    "import threading\ndef f():\n    got = threading.Event()\n    t = threading.Timer(0.01, got.set)\n    t.start()\n"
    "    return got.wait(5)\ndef g():\n    data = threading.local()\n    data.x = 1\n    seen = []\n"
    "    t = threading.Thread(target=lambda: seen.append(hasattr(data, 'x')))\n    t.start()\n    t.join()\n"
    "    return seen\n",
    "assert f() is True",
    "assert g() == [False]",
)

STATE.asserts(
    "decimal_context_is_set",
    "import decimal\ndef f():\n    return decimal.Decimal(1) / decimal.Decimal(7)\n",
    "import decimal\ndecimal.getcontext().prec = 5\nassert str(decimal.Decimal(1) / 3) == '0.33333'",
    "assert str(f()) == '0.14286'",
)
STATE.asserts(
    "decimal_context_is_new",
    "import decimal\ndef f():\n    return decimal.Decimal(1) / decimal.Decimal(3)\n",
    "import decimal\nassert len(str(f())) == 30",
    "import decimal\nassert f() == decimal.Decimal(1) / decimal.Decimal(3)",
)
STATE.asserts(
    "recursion_limit_is_set",
    "def f(n):\n    return n\n",
    "import sys\nsys.setrecursionlimit(200)\nassert f(1) == 1",
    "import sys\nassert sys.getrecursionlimit() == 200",
)
STATE.asserts(
    "recursion_limit_is_new",
    "def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\n",
    "def g(n):\n    return 0 if n == 0 else 1 + g(n - 1)\nassert g(500) == f(500)",
)
STATE.asserts(
    "builtins_are_changed",
    "def f(x):\n    return len(x)\n",
    "import builtins\nbuiltins.extra = 5\nassert extra == 5 and f('a') == 1",
    "import random\nrandom.seed(1)\nassert random.random() == random.Random(1).random()",
)
STATE.asserts(
    "builtins_are_new",
    "def f(x):\n    return len(x)\n",
    "import builtins\nassert not hasattr(builtins, 'extra') and f('ab') == 2",
)
STATE.asserts(
    "module_is_changed",
    "import math\ndef f(x):\n    return math.floor(x)\n",
    "import math\nmath.tau_twice = 2 * math.tau\nassert f(1.5) == 1",
    "import string\nstring.digits = 'x'\nassert f(2.5) == 2",
)
STATE.asserts(
    "module_is_new",
    "import string\ndef f():\n    return string.digits\n",
    "import string, math\nassert string.digits == '0123456789' == f() and not hasattr(math, 'tau_twice')",
)
