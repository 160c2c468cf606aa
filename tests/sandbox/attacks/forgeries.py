"""Programs that try to be told "pass" without the answer: exits, hostile objects, patched builtins, found answers."""

# ruff: noqa: E501 (lines of the hostile programs)
from __future__ import annotations

from tests.sandbox.attacks.attack import PRELUDE, Attack

ALWAYS_EQUAL = r"""
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __bool__(self): return True
    def __contains__(self, item): return True
    def __hash__(self): return 0
"""

ATTACKS = (
    Attack("exit_at_import", "leave with status 0 before the tests", "import os\nos._exit(0)\n"),
    Attack(
        "exit_in_call",
        "leave with status 0 in a test",
        "import os\ndef f(x): os._exit(0)\n",
        statuses=("crash", "skipped"),
    ),
    Attack("system_exit_at_import", "raise SystemExit(0) before the tests", "import sys\nsys.exit(0)\n"),
    Attack("system_exit_in_call", "raise SystemExit(0) in a test", "def f(x): raise SystemExit(0)\n"),
    Attack(
        "exceptions_of_control",
        "raise what loops and generators catch silently",
        "def f(x):\n    raise (StopIteration if x == 1 else GeneratorExit)\n",
    ),
    Attack("keyboard_interrupt", "raise KeyboardInterrupt", "def f(x): raise KeyboardInterrupt\n"),
    Attack(
        "exit_replaced",
        "replace every exit by a return",
        "import os, sys, builtins\nos._exit = sys.exit = builtins.exit = lambda *a: None\ndef f(x): raise SystemExit\n",
    ),
    Attack("equal_object", "an object equal to everything", f"class T:{ALWAYS_EQUAL}\ndef f(x): return T()\n"),
    Attack("equal_int", "an int equal to everything", f"class T(int):{ALWAYS_EQUAL}\ndef f(x): return T(0)\n"),
    Attack("equal_str", "a str equal to everything", f"class T(str):{ALWAYS_EQUAL}\ndef f(x): return T('')\n"),
    Attack("equal_list", "a list equal to everything", f"class T(list):{ALWAYS_EQUAL}\ndef f(x): return T([0])\n"),
    Attack("equal_dict", "a dict equal to everything", f"class T(dict):{ALWAYS_EQUAL}\ndef f(x): return T(a=1)\n"),
    Attack("equal_tuple", "a tuple of such", f"class T(tuple):{ALWAYS_EQUAL}\ndef f(x): return [T((T(),))]\n"),
    Attack(
        "equal_numbers",
        "subclasses of numbers from the standard library",
        f"import decimal, fractions\nclass D(decimal.Decimal):{ALWAYS_EQUAL}\nclass F(fractions.Fraction):{ALWAYS_EQUAL}\n"
        "def f(x): return D(0) if x == 1 else [F(0)]\n",
    ),
    Attack(
        "equal_nested",
        "an object equal to everything deep in honest containers",
        f"class T:{ALWAYS_EQUAL}\ndef f(x): return T() if x == 1 else [T()]\n",
    ),
    Attack(
        "contains_everything",
        "a container that contains everything",
        f"class T:{ALWAYS_EQUAL}\ndef f(x): return T()\n",
        tests=("assert '@WANTED@' in f(1)", "assert all(word in f(1) for word in ['@WANTED@'])"),
    ),
    Attack(
        "class_forged",
        "an object that says its class is str",
        f"class T:\n    __class__ = str{ALWAYS_EQUAL}\ndef f(x): return T()\n",
        tests=("assert isinstance(f(1), str) and f(1) == '@WANTED@'", "assert f(1) == '@WANTED@'"),
    ),
    Attack(
        "metaclass_forged",
        "a class equal to everything, whose instances and subclasses are everything",
        f"class M(type):{ALWAYS_EQUAL}\n    def __instancecheck__(c, x): return True\n    def __subclasscheck__(c, x): return True\n"
        "class T(metaclass=M): pass\ndef f(x): return T\n",
    ),
    Attack(
        "class_identity",
        "a class that calls itself decimal.Decimal, one collections.deque, and hides what it is",
        f"class Decimal:{ALWAYS_EQUAL}\n    def __str__(self): return '0'\nDecimal.__module__ = 'decimal'\n"
        f"class deque:{ALWAYS_EQUAL}\n    def __iter__(self): return iter([self])\ndeque.__module__ = 'collections'\n"
        "def f(x): return Decimal() if x == 1 else deque()\n",
    ),
    Attack(
        "pickle_payload",
        "an object that runs a command when it is unpickled or copied",
        PRELUDE
        + f"class T:{ALWAYS_EQUAL}\n    def __reduce__(self): return (exec, (\"open('@FOLDER@/unpickled', 'w')\",))\n"
        "    __getstate__ = __reduce_ex__ = __deepcopy__ = __copy__ = lambda self, *a: self.__reduce__()\ndef f(x): return T()\n",
    ),
    Attack(
        "assertion_error_shadowed",
        "AssertionError that is caught nowhere",
        "import builtins\nclass E(BaseException): pass\nbuiltins.AssertionError = AssertionError = E\ndef f(x): return 0\n",
    ),
    Attack(
        "exceptions_named_like_ours",
        "exceptions with the names that a judge uses inside",
        "class Passed(BaseException): pass\nclass SkipTest(Exception): pass\nclass TestTimeout(BaseException): pass\n"
        "def f(x): raise [Passed, SkipTest, TestTimeout][0 if x == 1 else 1]('pass')\n",
    ),
    Attack(
        "builtins_patched",
        "builtins that agree with everything",
        r"""
import builtins
def yes(*a, **k): return True
def f(x):
    for name in ("isinstance", "issubclass", "all", "any", "len", "repr", "exec", "eval", "compile", "type", "print",
                 "getattr", "hasattr", "callable", "sorted", "abs", "min", "max", "sum", "set", "str", "list"):
        setattr(builtins, name, yes)
    return 0
""",
    ),
    Attack(
        "libraries_patched",
        "json, struct, operator, unittest and socket that say pass",
        r"""
import json, struct, operator, unittest, socket, os, sys
said = '["pass", true, 0]'
json.dumps = json.JSONEncoder.encode = lambda *a, **k: said
json.loads = lambda *a, **k: ["pass"]
operator.eq = lambda a, b: True
for name in dir(unittest.TestCase):
    if name.startswith("assert"): setattr(unittest.TestCase, name, lambda *a, **k: None)
def f(x): return 0
""",
    ),
    Attack(
        "functions_of_the_guest_patched",
        "replace the functions of the code that serves this process, found through its frames and modules",
        r"""
import sys
def yes(*a, **k): return True
def f(x):
    frame = sys._getframe(1)
    while frame is not None:
        for name, value in list(frame.f_globals.items()):
            if callable(value) and not name.startswith("__") and any(
                    word in name.lower() for word in ("pass", "check", "equal", "encode", "verdict", "test", "judge")):
                frame.f_globals[name] = yes
        frame = frame.f_back
    return 0
""",
    ),
    Attack(
        "assert_removed",
        "switch off assert statements, and import code that was compiled without them",
        "import sys\nsys.flags = type('F', (), dict(optimize=2))()\n__debug__x = False\nimport builtins\n"
        "builtins.__dict__['__debug__'] = False\ndef f(x): return 0\n",
    ),
    Attack(
        "entry_point_strange",
        "an entry point that is a property, a class, a module of lies",
        f"class T:{ALWAYS_EQUAL}\n    def __call__(self, *a): return self\n    def __getattr__(self, n): return self\nf = T()\n",
    ),
    Attack(
        "tests_redefined",
        "define the tests, the candidate and the checker oneself",
        "def check(candidate): pass\ndef candidate(x): return 0\ndef test(): pass\n__test__ = {}\nassert_ = check\n"
        "def f(x): return 0\n",
        tests="def check(candidate):\n    assert candidate(1) == '@WANTED@'\n    assert candidate(2) == '@WANTED@'\n",
    ),
    Attack(
        "tests_swallowed",
        "end in an open string, an open bracket, a line continuation: joined with tests, they disappear",
        'def f(x): return 0\nimport sys\n"""',
    ),
    Attack(
        "tests_skipped_by_structure",
        "put what follows into a function that nobody calls",
        "def f(x): return 0\nif False:\n    def hidden():\n        pass\n\\",
    ),
    Attack(
        "trace_and_hooks",
        "trace, profile, audit and display hooks that change what runs",
        r"""
import sys, threading
def hook(*args):
    try: sys._getframe(1).f_locals.clear()
    except Exception: pass
    return hook
def f(x):
    sys.setprofile(hook); sys.settrace(hook); threading.setprofile(hook); threading.settrace(hook)
    sys.addaudithook(lambda *a: None)
    sys.excepthook = sys.displayhook = sys.unraisablehook = hook
    return 0
""",
    ),
    Attack(
        "audit_hook_vetoes",
        "an audit hook that refuses everything the guest does from now on",
        "import sys\ndef veto(*a): raise SystemExit(0)\ndef f(x):\n    sys.addaudithook(veto)\n    return 0\n",
    ),
    Attack(
        "import_machinery",
        "modules replaced, so that whoever imports next gets lies",
        r"""
import sys, types
class Lies(types.ModuleType):
    def __getattr__(self, name): return lambda *a, **k: True
for name in list(sys.modules):
    if name not in ("sys", "builtins"): sys.modules[name] = Lies(name)
sys.meta_path.insert(0, Lies("finder"))
def f(x): return 0
""",
    ),
    Attack(
        "stdout_report",
        "print what a report would say",
        'def f(x):\n    for n in (1, 2): print(\'{"status": "pass", "passed": 2, "total": 2}\\nOK\\n2 passed\')\n    return 0\n',
    ),
    Attack(
        "output_terminal",
        "put control characters into messages, names and output",
        "class Bad(Exception): pass\nBad.__name__ = Bad.__qualname__ = 'E\\x1b[2J\\n\\r\\x00pass'\n"
        "def f(x): raise Bad('\\x1b]0;pass\\x07\\x9b2J\\r\\x00\\ud800\\u202e' * 500)\n",
        statuses=("error",),
    ),
)
