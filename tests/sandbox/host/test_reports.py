"""Reports of a judge, which the host reads like the message of a stranger."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox
from marl_ray.sandbox.host.program import failed_report, read_report
from marl_ray.sandbox.inside.protocol import messages
from marl_ray.sandbox.inside.protocol.reports import MalformedReport
from marl_ray.sandbox.inside.suites import suite_parser

LIMITS = Limits(max_output_bytes=8)
PROGRAM = Program("def f(x): return x", ("assert f(1) == 1", "assert f(2) == 2"), "f")
VERDICT = {"status": "pass", "error_type": None, "message": None, "line": 3, "source": "assert", "trusted": True}
SYNTAX = {"message": "m", "line": 1, "column": None}
GOOD: dict[str, Any] = {
    "number": 1,
    "syntax_error": None,
    "tests": [VERDICT, VERDICT | {"status": "fail", "error_type": "AssertionError", "message": "no", "line": None}],
    "stdout": "text",
    "cpu_s": 0.5,
    "wall_s": 1.0,
    "infra_error": None,
}
BAD: list[dict[str, Any]] = [
    {"tests": [VERDICT]},
    {"tests": [VERDICT] * 3},
    {"tests": {}},
    {"tests": [VERDICT, None]},
    {"tests": [VERDICT, {}]},
    {"tests": [VERDICT, VERDICT | {"more": 1}]},
    {"tests": [VERDICT, VERDICT | {"status": "excellent"}]},
    {"tests": [VERDICT, VERDICT | {"status": ["pass"]}]},
    {"tests": [VERDICT, VERDICT | {"trusted": 1}]},
    {"tests": [VERDICT, VERDICT | {"line": -1}]},
    {"tests": [VERDICT, VERDICT | {"line": True}]},
    {"tests": [VERDICT, VERDICT | {"message": "x" * 100_000}]},
    {"tests": [VERDICT, VERDICT | {"source": None}]},
    {"syntax_error": "no"},
    {"syntax_error": SYNTAX | {"line": 1 << 40}},
    {"syntax_error": {"message": "m"}},
    {"stdout": "longer text"},
    {"stdout": None},
    {"cpu_s": float("nan")},
    {"wall_s": -1.0},
    {"wall_s": "1"},
    {"number": "1"},
    {"infra_error": 5},
    {"more": 1},
]


def test_a_good_report_is_read() -> None:
    report = read_report(GOOD, PROGRAM, LIMITS, "process")
    assert (report.passed, report.total, report.trusted, report.stdout) == (1, 2, True, "text")
    untrusted = read_report(GOOD | {"tests": [VERDICT | {"trusted": False}] * 2}, PROGRAM, LIMITS, "process")
    assert (untrusted.trusted, untrusted.trusted_passed) == (False, 0)
    assert not read_report(GOOD, PROGRAM, LIMITS, "none").trusted
    assert read_report(GOOD | {"syntax_error": SYNTAX}, PROGRAM, LIMITS, "process").syntax_error is not None


@pytest.mark.parametrize("change", BAD, ids=str)
def test_a_bad_report_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedReport):
        read_report(GOOD | change, PROGRAM, LIMITS, "process")


@pytest.mark.parametrize("wire", [None, [], 1, "report", {}, {name: GOOD[name] for name in list(GOOD)[1:]}])
def test_something_else_is_refused(wire: Any) -> None:
    with pytest.raises(MalformedReport):
        read_report(wire, PROGRAM, LIMITS, "process")


@pytest.mark.parametrize(
    "body", [b"{", b"[" * 100_000, json.dumps(GOOD).encode(), b'{"number": 2, "tests": []}', b"[]", b"\xff"]
)
def test_a_judge_that_sends_anything_else_is_restarted(
    body: bytes, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the judge's messages; each program is tried twice."""
    running = sandbox._session
    assert running is not None
    restarts = sandbox.restarts
    with monkeypatch.context() as patch:
        patch.setattr(messages.FrameReader, "frame", lambda reader: body)
        patch.setattr(running, "start", lambda: running._unanswered.clear())
        report = sandbox.run(PROGRAM)
    assert [(test.status, test.error_type) for test in report.tests] == [("crash", "JudgeDied")] * 2
    assert sandbox.restarts == restarts + 2
    running.restart()  # its real answers have not been read


def test_only_the_judge_analyses_the_tests(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the tests once, in the host; a copy of the program in another process knows the number."""
    tests = ("assert f(10) == 10", "assert f(20) == 20")
    program = Program("def f(x): return x", tests, "f")
    monkeypatch.setattr(suite_parser, "parse_tests", None)
    assert program.number_of_tests == 2
    copy = pickle.loads(pickle.dumps(program))
    monkeypatch.setattr(suite_parser, "count_tests", None)
    assert sandbox.run(copy).passed == 2
    assert copy.to_dict() == program.to_dict()
    assert (copy, copy.key) == (program, program.key)


@pytest.mark.parametrize(
    ("tests", "form", "count"),
    [
        (("x = 1", "assert f(x) == 1", "assert f(x) == 1\nassert f(2) == 2"), "auto", 2),
        ("x = 1\nassert f(x)\nassert f(2)\nif f(3):\n    assert f(4)\ny = 2\n", "auto", 3),
        ("def check(c):\n    assert True\n    for x in (1, 2):\n        assert c(x)\n    assert c(3)\n", "auto", 2),
        (('{"stdin": "", "stdout": "a"}', '{"stdin": "b", "stdout": "c"}'), "auto", 2),
        (
            "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass\n    def help(self): pass\n"
            "class B(A):\n    def test_a(self): pass\n    def test_b(self): pass\n",
            "auto",
            3,
        ),
    ],
)
def test_counting_agrees_with_the_analysis(tests: Any, form: Any, count: int) -> None:
    assert suite_parser.count_tests(tests, "f", form) == len(suite_parser.parse_tests(tests, "f", form).cases) == count


@pytest.mark.parametrize(
    "tests",
    [("assert f(",), ("return 1\nassert f(1)",), ("x = 1",), "import unittest\nclass A(unittest.TestCase): return"],
)
def test_counting_refuses_what_the_analysis_refuses(tests: Any) -> None:
    said = []
    for parse in (suite_parser.count_tests, suite_parser.parse_tests):
        with pytest.raises(ValueError, match="test") as error:
            parse(tests, "f")
        said.append(str(error.value))
    assert said[0] == said[1]


def test_a_program_without_a_judge_gets_a_verdict_per_test() -> None:
    report = failed_report(PROGRAM, "process")
    assert [(test.status, test.source) for test in report.tests] == [("error", test) for test in PROGRAM.tests]
