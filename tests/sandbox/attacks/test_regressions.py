"""Regressions: answers of a program that the judge's Python code, or C code that it calls, once trusted."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox
from marl_ray.sandbox.inside.judge.remote_errors import ErrorDecoder

LIMITS = Limits(test_cpu_s=2.0, test_wall_s=4.0, program_wall_s=20.0)
COUNTER = """
from collections import Counter
seen = []
class C(Counter):
    def __getitem__(self, key):
        seen.append(key)
        return 1
    def __missing__(self, key):
        return 1
    def __sub__(self, other):
        return Counter()
    def __rsub__(self, other):
        return Counter()
def f(x):
    return seen if x == 'seen' else C()
"""


def statuses(sandbox: Sandbox, source: str, *tests: str) -> list[str]:
    return [test.status for test in sandbox.run(Program(source, tests, "f", limits=LIMITS)).tests]


@pytest.mark.parametrize(
    "claim",
    [
        "f(1) == Counter(['alpha', 'beta'])",
        "Counter('abc') == f(1)",
        "Counter('ab') <= f(1)",
        "not (Counter('ab') - f(1))",
        "f(1)['alpha'] == 1",
    ],
)
def test_a_counter_subclass_is_compared_by_its_contents(sandbox: Sandbox, claim: str) -> None:
    assert statuses(sandbox, COUNTER, f"from collections import Counter\nassert {claim}") == ["fail"]


def test_comparing_a_counter_does_not_reveal_expected_keys(sandbox: Sandbox) -> None:
    tests = ("from collections import Counter\nassert f(1) == Counter(['alpha'])", "assert f('seen') == []")
    assert statuses(sandbox, COUNTER, *tests) == ["fail", "pass"]


def decoded(wire: Any) -> Any:
    """Return the value unchanged, in place of a decoder."""
    return wire


@pytest.mark.parametrize(
    ("arguments", "attributes"),
    [
        (("utf-8", b"ab", 0, 1, "bad"), {"start": -100, "end": -99}),
        (("utf-8", b"ab", 0, 1, "bad"), {"object": [1, 2, 3], "start": -8}),
        (("utf-8", b"ab", -100, -99, "bad"), {}),
        (("utf-8", b"ab", 10**6, 10**6 + 1, "bad"), {}),
        (("utf-8", b"", 0, 1, "bad"), {}),
    ],
)
def test_a_unicode_error_reads_no_memory_outside_its_object(
    arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    details = [True, arguments, attributes, None, False, None]
    error = ErrorDecoder(decoded).exception(["UnicodeDecodeError", "said", 1, ["UnicodeDecodeError"], details])
    assert isinstance(error, UnicodeError)
    position = getattr(error, "start", 0)
    assert 0 <= position < 2
    assert getattr(error, "object", b"ab") == b"ab"
    assert str(error) in ("said", "'utf-8' codec can't decode byte 0x61 in position 0: bad")


def test_plain_attributes_of_builtin_exceptions_cross() -> None:
    details = [True, ("gone",), {"name": "x", "own": [1], "path": [1]}, None, False, None]
    error: Any = ErrorDecoder(decoded).exception(["ImportError", "gone", 1, ["ImportError"], details])
    assert (error.name, error.own, error.path) == ("x", [1], None)


@pytest.mark.parametrize(
    "answer",
    [
        "10 ** 5000",
        "type('S', (), {'__str__': lambda s: exit()})()",
        "type('I', (int,), {'__repr__': lambda s: (_ for _ in ()).throw(KeyboardInterrupt)})(7)",
    ],
)
def test_a_value_that_cannot_be_printed_fails_only_its_own_test(sandbox: Sandbox, answer: str) -> None:
    restarts = sandbox.restarts
    found = statuses(
        sandbox,
        f"def f(x):\n    return {answer}\n",
        "assert f(1) == 2, f(1)",
        "{1: 2}[f(1)]; assert False",
        "assert 1 == 1",
    )
    assert found[0] in ("fail", "error")
    assert found[1:] == ["error", "pass"]
    assert sandbox.restarts == restarts


def test_truncated_output_is_wrong(sandbox: Sandbox) -> None:
    source = "print(6)\nprint(' ' * 70_000)\nprint('junk')\n"
    test = '{"stdin": "", "stdout": "6"}'
    report = sandbox.run(Program(source, (test,), "", form="stdio", limits=LIMITS))
    assert [(result.status, result.error_type) for result in report.tests] == [("fail", "WrongOutput")]
    assert "bytes were printed" in (report.tests[0].message or "")


HELD_IN_C = """
def f(x):
    return [number * (2 ** 61 - 1) for number in range(1, 60_000)]
def g(x):
    return x
"""
COUNTED = "from collections import Counter\nassert Counter(f(1))"


def test_a_test_that_holds_the_judge_in_c_code_costs_only_itself(sandbox: Sandbox) -> None:
    limits = Limits(test_cpu_s=1.0, test_wall_s=20.0, program_wall_s=60.0)
    tests = ("assert g(1) == 1", COUNTED, "assert g(2) == 3", "assert g(3) == 3")
    restarts = sandbox.restarts
    hostile, honest = sandbox.run_batch(
        [Program(HELD_IN_C, tests, "g", limits=limits), Program("def g(x): return x\n", ("assert g(1) == 1",), "g")]
    )
    assert [result.status for result in hostile.tests] == ["pass", "timeout", "fail", "pass"]
    assert "CPU limit" in (hostile.tests[1].message or "")
    assert (hostile.trusted, honest.passed) == (True, 1)
    assert sandbox.restarts == restarts + 1


@pytest.mark.slow
def test_tests_in_c_code_count_as_timeouts_of_visible_and_hidden_tests(sandbox: Sandbox) -> None:
    limits = Limits(test_cpu_s=1.0, test_wall_s=20.0, program_wall_s=60.0, max_timeouts=1)
    tests = ("assert g(1) == 1", COUNTED, "assert g(2) == 2", "assert g(3) == 3")
    report = sandbox.run(Program(HELD_IN_C, tests, "g", limits=limits, visible=1))
    assert [result.status for result in report.tests] == ["pass", "timeout", "skipped", "skipped"]
