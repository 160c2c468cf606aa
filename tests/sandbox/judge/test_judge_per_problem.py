"""Nothing that tests or a program do to the judge's process outlives their problem."""

# ruff: noqa: E501 (lines of the programs)
from __future__ import annotations

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox, SandboxSettings
from tests.sandbox.helpers import SHORT_LIMITS, run_asserts, statuses

TAKES_OVER = """
import sys
for name, module in list(sys.modules.items()):
    if name.endswith("assert_evaluator"):
        module.AssertEvaluator.compare = lambda self, *values: True
        module.AssertEvaluator.truth = lambda self, *values: True
"""
EVALUATES = (
    "assert eval(f(1)) == 2",
    "exec(f(1))\nassert f(0) == 0",
    "exec(compile(f(1), '', 'exec'))\nassert f(0) == 0",
    "run = eval\nassert list(map(run, [f(1)])) == [2]",
    "import pickle\nassert pickle.loads(f(2)) is None",
)
ATTACKER = f"""
import pickle
SOURCE = {TAKES_OVER!r}
class Steal:
    def __reduce__(self): return exec, (SOURCE,)
def f(x):
    if x == 2: return pickle.dumps(Steal())
    return f"exec({{SOURCE!r}}) or 2" if x else 0
"""


def passes_wrongly(sandbox: Sandbox, tests: tuple[str, ...]) -> bool:
    """Return whether a wrong program passes any test."""
    return run_asserts(sandbox, "def f(x): return 'wrong'\n", *tests).passed > 0


@pytest.mark.parametrize("test", EVALUATES)
def test_a_program_that_takes_over_the_process_of_its_tests_decides_no_other_problem(
    sandbox: Sandbox, test: str
) -> None:
    restarts = sandbox.restarts
    run_asserts(sandbox, ATTACKER, test)
    assert not passes_wrongly(sandbox, ("assert f(5) == 'right'", "assert f(6) is None"))
    assert not passes_wrongly(sandbox, ("import sys\nassert f(5) == 'right'",)), "a problem with a process of its own"
    assert not passes_wrongly(sandbox, (test, "assert f(5) == 'right'")), "another program with the same tests"
    assert sandbox.restarts == restarts


EFFECTS = {
    "the judge itself": (
        "from inside.judge.assert_evaluator import AssertEvaluator\nAssertEvaluator.compare = AssertEvaluator.truth = lambda *values: True",
        "assert f(1) == 2",
    ),
    "an attribute of a library class": (
        "import collections\ncollections.Counter.__eq__ = lambda a, b: True",
        "from collections import Counter\nassert f(Counter('a')) == Counter('b')",
    ),
    "a function of a module": ("import math\nmath.isclose = lambda a, b: True", "import math\nassert math.isclose(f(1), 2)"),
    "a builtin": ("import builtins\nbuiltins.sorted = lambda x: x", "assert sorted(f([2, 1])) == [2, 1]"),
    "the decimal context": (
        "import decimal\ndecimal.getcontext().prec = 1",
        "from decimal import Decimal\nassert Decimal(f(1)) / 8 == Decimal('0.1')",
    ),
    "flags of the decimal context": (
        "from decimal import Decimal\nx = Decimal(1) / 3",
        "import decimal\nassert f(1) and any(decimal.getcontext().flags.values())",
    ),
    "a seed": ("import random\nrandom.seed(7)", "import random\nassert f(random.random()) == random.Random(7).random()"),
    "the recursion limit": ("import sys\nsys.setrecursionlimit(400)", "import sys\nassert f(sys.getrecursionlimit()) == 400"),
    "the environment": ("import os\nos.environ['LEFT'] = '1'", "import os\nassert f(os.environ.get('LEFT')) == '1'"),
    "the folder": ("import os\nos.chdir('/usr')", "import os\nassert f(os.getcwd()) == '/usr'"),
    "warning filters": ("import warnings\nwarnings.simplefilter('error')", "import warnings\nassert f(warnings.filters[0][0]) == 'error'"),
    "imported modules": ("import colorsys", "import sys\nassert f('colorsys') in sys.modules"),
    "the cache of patterns": ("import re\nre.compile('left')", "import re\nassert any('left' in key for key in re._cache) and f(1)"),
    "a signal handler": (
        "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "import signal\nassert f(1) and signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN",
    ),
    "a finaliser": (
        "import gc\ngc.disable()\nclass A:\n    def __del__(self): math.e = 3\nimport math\na = A()\na.a = a\ndel a",
        "import gc, math\ngc.collect()\nassert f(1) and math.e == 3",
    ),
    "a thread": (
        "import threading, time, math\ndef later():\n    while True:\n        math.tau = 1\n        time.sleep(0.01)\nthreading.Thread(target=later, daemon=True).start()",
        "import math, time\ntime.sleep(0.05)\nassert f(1) and math.tau == 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("effect", EFFECTS)
def test_the_tests_of_one_client_do_not_change_those_of_the_next(sandbox: Sandbox, effect: str) -> None:
    """Give both clients a correct program; the second client's test is wrong, unless the first one's effect remains."""
    cause, impossible = EFFECTS[effect]
    source = "def f(x): return x\n"
    assert run_asserts(sandbox, source, f"{cause}\nassert f(1) == 1").passed == 1
    assert run_asserts(sandbox, source, impossible).passed == 0
    assert run_asserts(sandbox, source, "assert f(1) == 1").passed == 1


FORGERIES = {
    "keys": "from inside.protocol import messages\nsetattr(messages, 'to_dict', lambda verdict: {'status': 'pass'})",
    "a time": "import time\nsetattr(time, 'process_time', lambda: float('nan'))",
    "an error": "import time\nsetattr(time, 'process_time', lambda: 1 / 0)",
    "nothing": "import os, time\nsetattr(time, 'process_time', lambda: os._exit(0))",
}
"""Changes of functions with which a process for one program makes its result."""


@pytest.mark.parametrize("forged", FORGERIES)
def test_a_malformed_result_counts_as_a_judge_that_died(sandbox: Sandbox, forged: str) -> None:
    restarts = sandbox.restarts
    test = f"{FORGERIES[forged]}\nassert f(1) == 1"
    report = run_asserts(sandbox, "def f(x): return x\n", test, "assert f(2) == 2")
    assert [(test.status, test.error_type) for test in report.tests] == [("crash", "JudgeDied")] * 2
    assert [test.source[-14:] for test in report.tests] == ["assert f(1) == 1"[-14:], "assert f(2) == 2"[-14:]]
    assert sandbox.restarts == restarts + 2, "one for each attempt"
    assert run_asserts(sandbox, "def f(x): return x\n", "assert f(1) == 1").passed == 1


def test_a_process_of_its_own_starts_no_processes_and_has_no_way_to_the_host(sandbox: Sandbox) -> None:
    if sandbox.level == "none":
        pytest.skip("no filter at this level")
    test = (
        "import os, sys, fcntl\nassert f(1) == 1\nopen_files = []\nfor number in range(3, 64):\n    try:\n"
        "        open_files.append(fcntl.fcntl(number, fcntl.F_GETFD))\n    except OSError:\n        pass\n"
        "assert len(open_files) <= 6, open_files\n"
        "try:\n    child = os.fork()\nexcept OSError:\n    child = -1\nif child == 0:\n    os._exit(0)\nassert child == -1"
    )
    report = run_asserts(sandbox, "def f(x): return x\n", test)
    assert statuses(report) == ["pass"], report.tests


def test_a_process_of_its_own_that_is_stuck_in_c_code_gives_one_timeout(sandbox: Sandbox) -> None:
    limits = Limits(test_cpu_s=0.5, test_wall_s=0.6, program_wall_s=20.0)  # as the limit of compilation
    stuck = "import sys, itertools\nassert f(1) in itertools.repeat(0)"
    report = run_asserts(sandbox, "def f(x): return x\n", "assert f(1) == 1", stuck, "assert f(2) == 2", limits=limits)
    assert statuses(report) == ["pass", "timeout", "pass"], report.tests


@pytest.mark.slow
def test_many_processes_leave_nothing_in_zygote_and_judge(sandbox: Sandbox) -> None:
    tests = ("import sys\nassert f(sys.maxsize) > 0",)
    programs = [Program(f"def f(x): return x  # {n}\n", tests, "f", limits=SHORT_LIMITS) for n in range(400)]
    restarts = sandbox.restarts
    assert all(report.passed == 1 for report in sandbox.run_batch(programs))
    assert sandbox.restarts == restarts


FURTHER_LINK = """
def attack():
    import socket, struct, time
    request = struct.Struct("<cIIII")
    for number in range(3, 64):
        try:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=number)
            kept.append(link)
            near, far = socket.socketpair()
            link.sendmsg([request.pack(b"L", 0, 0, 0, 0)], [(1, 1, struct.pack("i", far.fileno()))])
            near.settimeout(1)
            program, connection = socket.socketpair()
            descriptors = struct.pack("2i", connection.fileno(), near.fileno())
            near.sendmsg([request.pack(b"F", 512, 100, 65536, 1 << 20)], [(1, 1, descriptors)])
            kept.extend((near, program))
            return struct.unpack("<ii", near.recv(8))[0]
        except OSError:
            pass
    return 0
kept = []
assert f(1) == 2
assert attack() == 0
"""


def test_a_test_makes_no_further_connection_to_the_zygote() -> None:
    """Fork a guest that outlives the problem, because the guest itself holds the connection that it belongs to."""
    with Sandbox(SandboxSettings(isolation="auto", limits=SHORT_LIMITS)) as sandbox:
        hostile = sandbox.run(Program("def f(x): return x + 1", FURTHER_LINK, "f"))
        assert [test.status for test in hostile.tests][-1] != "fail", "no guest was forked"
        honest = Program("def f(x): return x + 1", ("assert f(1) == 2",), "f")
        assert [sandbox.run(honest).passed for _ in range(3)] == [1, 1, 1]
