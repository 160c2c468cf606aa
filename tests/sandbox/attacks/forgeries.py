"""Programs that try to get a pass without the answer: exits, hostile objects, patched builtins and modules.

No test may pass.
"""

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
    Attack("exit_at_import", "Exit with status 0 before the tests.", "import os\nos._exit(0)\n"),
    Attack(
        "exit_in_call",
        "Exit with status 0 during a test.",
        "import os\ndef f(x): os._exit(0)\n",
        statuses=("crash", "skipped"),
    ),
    Attack("system_exit_at_import", "Raise SystemExit(0) before the tests.", "import sys\nsys.exit(0)\n"),
    Attack("system_exit_in_call", "Raise SystemExit(0) during a test.", "def f(x): raise SystemExit(0)\n"),
    Attack(
        "iteration_exceptions",
        "Raise StopIteration and GeneratorExit, which loops and generators catch.",
        "def f(x):\n    raise (StopIteration if x == 1 else GeneratorExit)\n",
    ),
    Attack("keyboard_interrupt", "Raise KeyboardInterrupt.", "def f(x): raise KeyboardInterrupt\n"),
    Attack(
        "exit_replaced",
        "Replace every exit function by one that returns.",
        "import os, sys, builtins\nos._exit = sys.exit = builtins.exit = lambda *a: None\ndef f(x): raise SystemExit\n",
    ),
    Attack(
        "equal_object", "Return an object that equals everything.", f"class T:{ALWAYS_EQUAL}\ndef f(x): return T()\n"
    ),
    Attack(
        "equal_int",
        "Return an int subclass that equals everything.",
        f"class T(int):{ALWAYS_EQUAL}\ndef f(x): return T(0)\n",
    ),
    Attack(
        "equal_str",
        "Return a str subclass that equals everything.",
        f"class T(str):{ALWAYS_EQUAL}\ndef f(x): return T('')\n",
    ),
    Attack(
        "equal_list",
        "Return a list subclass that equals everything.",
        f"class T(list):{ALWAYS_EQUAL}\ndef f(x): return T([0])\n",
    ),
    Attack(
        "equal_dict",
        "Return a dict subclass that equals everything.",
        f"class T(dict):{ALWAYS_EQUAL}\ndef f(x): return T(a=1)\n",
    ),
    Attack(
        "equal_tuple",
        "Return a tuple subclass, nested in itself, that equals everything.",
        f"class T(tuple):{ALWAYS_EQUAL}\ndef f(x): return [T((T(),))]\n",
    ),
    Attack(
        "equal_numbers",
        "Return subclasses of Decimal and Fraction that equal everything.",
        f"import decimal, fractions\nclass D(decimal.Decimal):{ALWAYS_EQUAL}\nclass F(fractions.Fraction):{ALWAYS_EQUAL}\n"
        "def f(x): return D(0) if x == 1 else [F(0)]\n",
    ),
    Attack(
        "equal_nested",
        "Return honest containers around an object that equals everything.",
        f"class T:{ALWAYS_EQUAL}\ndef f(x): return T() if x == 1 else [T()]\n",
    ),
    Attack(
        "contains_everything",
        "Return a container that claims to contain everything.",
        f"class T:{ALWAYS_EQUAL}\ndef f(x): return T()\n",
        tests=("assert '@WANTED@' in f(1)", "assert all(word in f(1) for word in ['@WANTED@'])"),
    ),
    Attack(
        "class_forged",
        "Return an object whose `__class__` is str.",
        f"class T:\n    __class__ = str{ALWAYS_EQUAL}\ndef f(x): return T()\n",
        tests=("assert isinstance(f(1), str) and f(1) == '@WANTED@'", "assert f(1) == '@WANTED@'"),
    ),
    Attack(
        "metaclass_forged",
        "Return a class that equals everything and claims every instance and subclass.",
        f"class M(type):{ALWAYS_EQUAL}\n    def __instancecheck__(c, x): return True\n    def __subclasscheck__(c, x): return True\n"
        "class T(metaclass=M): pass\ndef f(x): return T\n",
    ),
    Attack(
        "class_identity",
        "Return objects whose classes are named decimal.Decimal and collections.deque.",
        f"class Decimal:{ALWAYS_EQUAL}\n    def __str__(self): return '0'\nDecimal.__module__ = 'decimal'\n"
        f"class deque:{ALWAYS_EQUAL}\n    def __iter__(self): return iter([self])\ndeque.__module__ = 'collections'\n"
        "def f(x): return Decimal() if x == 1 else deque()\n",
    ),
    Attack(
        "pickle_payload",
        "Return an object that runs code when it is unpickled or copied.",
        PRELUDE
        + f"class T:{ALWAYS_EQUAL}\n    def __reduce__(self): return (exec, (\"open('@FOLDER@/unpickled', 'w')\",))\n"
        "    __getstate__ = __reduce_ex__ = __deepcopy__ = __copy__ = lambda self, *a: self.__reduce__()\ndef f(x): return T()\n",
    ),
    Attack(
        "assertion_error_shadowed",
        "Replace AssertionError by an exception that nothing catches.",
        "import builtins\nclass E(BaseException): pass\nbuiltins.AssertionError = AssertionError = E\ndef f(x): return 0\n",
    ),
    Attack(
        "exceptions_named_like_test_outcomes",
        "Raise exceptions named like the outcomes of test frameworks.",
        "class Passed(BaseException): pass\nclass SkipTest(Exception): pass\nclass TestTimeout(BaseException): pass\n"
        "def f(x): raise [Passed, SkipTest, TestTimeout][0 if x == 1 else 1]('pass')\n",
    ),
    Attack(
        "builtins_patched",
        "Replace builtins by functions that return True.",
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
        "Patch json, operator and unittest so that they report a pass.",
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
        "guest_functions_patched",
        "Replace functions of the guest's own code, found through frames.",
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
        "Disable assert statements through sys.flags and __debug__.",
        "import sys\nsys.flags = type('F', (), dict(optimize=2))()\n__debug__x = False\nimport builtins\n"
        "builtins.__dict__['__debug__'] = False\ndef f(x): return 0\n",
    ),
    Attack(
        "entry_point_is_an_instance",
        "Define the entry point as an instance that equals everything.",
        f"class T:{ALWAYS_EQUAL}\n    def __call__(self, *a): return self\n    def __getattr__(self, n): return self\nf = T()\n",
    ),
    Attack(
        "tests_redefined",
        "Define the tests, the candidate and the checker in the program.",
        "def check(candidate): pass\ndef candidate(x): return 0\ndef test(): pass\n__test__ = {}\nassert_ = check\n"
        "def f(x): return 0\n",
        tests="def check(candidate):\n    assert candidate(1) == '@WANTED@'\n    assert candidate(2) == '@WANTED@'\n",
    ),
    Attack(
        "open_string_at_end",
        "End the source in an open string, which would swallow tests appended to the source.",
        'def f(x): return 0\nimport sys\n"""',
    ),
    Attack(
        "line_continuation_at_end",
        "End the source in a line continuation, which would move appended tests into an uncalled function.",
        "def f(x): return 0\nif False:\n    def hidden():\n        pass\n\\",
    ),
    Attack(
        "trace_and_hooks",
        "Install trace, profile, audit and display hooks.",
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
        "Install an audit hook that refuses every further operation of the guest.",
        "import sys\ndef veto(*a): raise SystemExit(0)\ndef f(x):\n    sys.addaudithook(veto)\n    return 0\n",
    ),
    Attack(
        "import_machinery",
        "Replace all loaded modules and the import system.",
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
        "Print the text of a passing report.",
        'def f(x):\n    for n in (1, 2): print(\'{"status": "pass", "passed": 2, "total": 2}\\nOK\\n2 passed\')\n    return 0\n',
    ),
    Attack(
        "output_terminal",
        "Put control characters into messages, class names and output.",
        "class Bad(Exception): pass\nBad.__name__ = Bad.__qualname__ = 'E\\x1b[2J\\n\\r\\x00pass'\n"
        "def f(x): raise Bad('\\x1b]0;pass\\x07\\x9b2J\\r\\x00\\ud800\\u202e' * 500)\n",
        statuses=("error",),
    ),
)
