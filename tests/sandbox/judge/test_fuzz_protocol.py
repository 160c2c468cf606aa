"""Fuzzing of the judge with malformed answers: no crash, no wait beyond the deadline, no pass."""

from __future__ import annotations

import builtins
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.sandbox import Limits, Program, Sandbox
from marl_ray.sandbox.inside.isolation.process import anonymous_file
from marl_ray.sandbox.inside.judge.deadlines import DeadlineTimer
from marl_ray.sandbox.inside.judge.suite_request import SuiteRequest
from marl_ray.sandbox.inside.judge.suite_runner import SuiteRunner
from marl_ray.sandbox.inside.judge.zygote_client import GuestProcess
from marl_ray.sandbox.inside.protocol import messages
from marl_ray.sandbox.inside.protocol.messages import GuestLimits
from marl_ray.sandbox.inside.protocol.references import ALL_METHODS
from marl_ray.sandbox.inside.suites.suite_parser import SuitePart, parse_tests
from tests.sandbox.strategies import wires

pytestmark = pytest.mark.slow

WANTED = "WANT-3f9c0d1e"
LIMITS = Limits(test_cpu_s=60.0, test_wall_s=0.12, program_wall_s=1.0, max_timeouts=1, max_crashes=2)
TESTS = (
    f"assert f(1) == {WANTED!r}",
    f"assert list(f([1])) == [{WANTED!r}]",
    f"assert f({{}}).name(2)['key'] == {WANTED!r}",
    f"assert sorted(f(1))[0] == {WANTED!r}",
    f"x = f(1)\nx.y = 3\nassert (x.y, x[0], str(x), len(x)) == {(WANTED,) * 4!r}",
    f"with f(1) as g:\n    assert g == {WANTED!r}",
    f"try:\n    r = f(1)\nexcept Exception:\n    r = None\nassert r == {WANTED!r}",
    f"try:\n    r = f(1)\nexcept:\n    r = None\nassert r == {WANTED!r}",
    f"assert {{**f(1)}} == {{{WANTED!r}: 1}} and f() is None",
    f"a = [1, [2]]\nb = f(a, x=a[1])\nassert f(b) is a and a[0] == {WANTED!r}",
    f"a = {{1: {{2}}}}\nf(a)\nf(a)\nassert a == {{1: {WANTED!r}}}",
    f"assert {{f(1), f(2)}} == {{{WANTED!r}}} and sorted([f(1), f(2)]) == [{WANTED!r}]",
    "r = []\ntry:\n    f(1)\nexcept Exception as e:\n    r = [*e.args, str(e), type(e).__name__]\n"
    f"assert {WANTED!r} in r",
    f"x = f(1)\nassert x == f(2) and str(x) == {WANTED!r} and float(x) > int(x) and x[0] is x",
)

Reply = bytes | list[Any]
"""Raw bytes, or the parts of an answer that gets the right nonce and framing."""

parts = st.lists(wires, max_size=5)
numbers = st.integers(-1, 6)
masks = st.sampled_from([0, 1, ALL_METHODS, ALL_METHODS >> 1, ALL_METHODS + 1, -1]) | st.integers(0, ALL_METHODS)
references = st.builds(
    lambda number, name, mask, own_hash: {"h": [number, name, mask, own_hash]},
    *(numbers, st.text(max_size=3), masks, st.none() | st.integers(-2, 2) | st.just(1 << 64)),
)
"""Well-formed references, so that tests get proxies and send requests; numbers repeat often."""
answers = st.one_of(wires, references, references, st.builds(lambda number: {"@": number}, numbers))
values = st.one_of(
    answers,
    st.lists(answers, max_size=3),
    st.builds(lambda *a: {"t": [{"t": [a[0]]}, a[1], a[2]]}, answers, st.booleans(), answers),
)
changes = st.none() | wires | st.lists(st.tuples(numbers, st.lists(values, max_size=3)).map(list), max_size=3)
attributes = st.lists(st.tuples(st.sampled_from(["x", "args", "remote"]), values).map(list), max_size=2)
details = (
    st.none()
    | wires
    | st.tuples(
        st.booleans(),
        st.lists(values, max_size=2).map(lambda items: {"t": items}),
        attributes.map(lambda items: {"d": items}),
        st.none() | parts,
    ).map(list)
)
builtin_names = st.lists(st.sampled_from(dir(builtins)) | wires, max_size=3)
plausible = st.one_of(
    st.builds(lambda value: ["ok", value], wires),
    st.builds(lambda value, after: ["ok", value, after], values, changes),
    st.builds(lambda value: ["ok", value, None], values),
    st.builds(
        lambda names: ["ok", names],
        st.dictionaries(st.sampled_from(["f", "g"]), wires | references.map(lambda r: r["h"])),
    ),
    st.builds(lambda *a: ["raise", *a], wires, wires, wires, builtin_names, details, changes),
    st.builds(lambda *a: ["syntax", *a], wires, wires, wires),
    st.builds(lambda kind, rest: [kind, *rest], st.sampled_from(["ok", "raise", "syntax", "pass", ""]), parts),
)
replies = st.lists(st.one_of(plausible, plausible, parts, st.binary(max_size=60)), max_size=7)


class GarbageZygote:
    """Fake zygote whose guests send the answers of a script, then close the connection or stay silent."""

    def __init__(self, script: list[Reply], load: bool, silent: bool) -> None:
        self.script, self.load, self.silent = list(script), load, silent
        self.open: list[socket.socket] = []

    def fork(self, limits: GuestLimits, *streams: int) -> GuestProcess:
        ours, theirs = socket.socketpair()
        self.open.append(theirs)
        threading.Thread(target=self.speak, args=(theirs,), daemon=True).start()
        return GuestProcess(os.getpid(), ours, anonymous_file("output"), limits)

    def speak(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        try:
            while header := stream.read(messages.HEADER.size):
                nonce, operation, *_ = json.loads(stream.read(*messages.HEADER.unpack(header)))
                if operation == "load" and self.load:
                    connection.sendall(messages.pack([nonce, "ok", {}]))
                elif not self.script:
                    break
                else:
                    reply = self.script.pop(0)
                    connection.sendall(reply if isinstance(reply, bytes) else messages.pack([nonce, *reply]))
        except (OSError, ValueError):
            pass
        if not self.silent:
            connection.close()

    def prepare_spare(self, limits: GuestLimits) -> None:
        pass

    def kill(self, guest: GuestProcess) -> None:
        guest.release()

    def kill_and_wait(self, guest: GuestProcess) -> int:
        guest.release()
        return 0


@pytest.fixture(scope="module")
def timer() -> Iterator[DeadlineTimer]:
    """The judge's timer in this process; restores the previous signal handler."""
    before = signal.getsignal(signal.SIGALRM)
    yield DeadlineTimer()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def verdicts(timer: DeadlineTimer, script: list[Reply], tests: Any, form: Any, load: bool, silent: bool) -> list[str]:
    zygote = GarbageZygote(script, load, silent)
    suite = parse_tests(tests, "f", form)
    part = SuitePart(tuple(range(len(suite.cases))), suite)
    request = SuiteRequest("source", None, part, LIMITS, None, {})
    started = time.monotonic()
    with timer.running():
        result = SuiteRunner(zygote, timer, request).run()  # type: ignore[arg-type]
    for connection in zygote.open:
        connection.close()
    assert time.monotonic() - started < LIMITS.program_wall_s + 4.0, "the judge waited past its deadline"
    assert len(result.verdicts) == len(suite.cases)
    json.dumps([messages.to_dict(verdict) for verdict in result.verdicts]).encode("ascii")
    return [verdict.status for verdict in result.verdicts]


class IdleSession:
    """A guest that uses no processor time."""

    def cpu_s(self) -> float:
        return 0.0


def test_a_test_may_begin_after_its_time_is_over(timer: DeadlineTimer) -> None:
    with timer.running(), timer.limit(IdleSession(), 1.0, -60.0):  # type: ignore[arg-type]
        remaining, _ = signal.getitimer(signal.ITIMER_PROF)
    assert remaining > 0


@settings(max_examples=300, deadline=None)
@given(script=replies, test=st.sampled_from(TESTS), load=st.booleans())
def test_malformed_answers_never_pass(timer: DeadlineTimer, script: list[Reply], test: str, load: bool) -> None:
    statuses = verdicts(timer, script, (test, test), "asserts", load, silent=False)
    assert "pass" not in statuses
    assert set(statuses) <= {"fail", "error", "crash", "timeout", "skipped"}


@settings(max_examples=15, deadline=None)
@given(script=replies, test=st.sampled_from(TESTS))
def test_silent_guests_end_at_the_deadline(timer: DeadlineTimer, script: list[Reply], test: str) -> None:
    assert "pass" not in verdicts(timer, script, (test,), "asserts", load=True, silent=True)


@settings(max_examples=100, deadline=None)
@given(script=replies)
def test_malformed_answers_to_a_script_request_never_pass(timer: DeadlineTimer, script: list[Reply]) -> None:
    tests = (json.dumps({"stdin": "", "stdout": WANTED}),)
    assert "pass" not in verdicts(timer, script, tests, "stdio", load=False, silent=False)


@settings(max_examples=100, deadline=None)
@given(script=replies)
def test_malformed_answers_to_unittest_requests_give_verdicts(timer: DeadlineTimer, script: list[Reply]) -> None:
    """Send garbage for tests in the guest, which may pass (the report is untrusted) but not crash the judge."""
    tests = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass\n    def test_b(self): pass\n"
    statuses = verdicts(timer, script, tests, "unittest", load=True, silent=False)
    assert set(statuses) <= {"pass", "fail", "error", "crash", "timeout", "skipped"}


GARBAGE_SOURCE = """
import os
def say(data):
    while data:
        data = data[os.write(3, data):]
{early}say({data})
def f(x):
    say({data})
    return x
"""


@settings(max_examples=120, deadline=None)
@given(data=st.binary(min_size=1, max_size=3000) | st.binary(min_size=1, max_size=20), early=st.booleans())
def test_real_guests_that_write_garbage_fail(sandbox: Sandbox, data: bytes, early: bool) -> None:
    """Write bytes to a real guest's descriptor, while loading or in a call."""
    source = GARBAGE_SOURCE.format(data=data, early="" if early else "if 0: ")
    limits = Limits(test_cpu_s=1.0, test_wall_s=0.3, program_wall_s=1.0, max_timeouts=1, max_crashes=1)
    started = time.monotonic()
    report = sandbox.run(Program(source, (f"assert f(1) == {WANTED!r}",), "f", limits=limits))
    assert time.monotonic() - started < 8.0
    assert report.infra_error is None
    assert report.tests[0].status in ("crash", "timeout")
    assert report.tests[0].error_type != "JudgeDied"
    honest = Program("def f(x): return x\n", (f"assert f({WANTED!r}) == {WANTED!r}",), "f")
    assert sandbox.run(honest).passed == 1
