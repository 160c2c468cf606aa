"""A program with its tests, and the report on it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any, get_args

from marl_ray.sandbox.inside.protocol import reports
from marl_ray.sandbox.inside.protocol.messages import Limits, SyntaxDiagnosis, TestResult, reject_unknown_keys, to_dict
from marl_ray.sandbox.inside.suites import suite_parser
from marl_ray.sandbox.inside.suites.suite import Form

Tests = str | tuple[str, ...]
_ERROR = TestResult("error")
_KEYS = {"program", "tests", "entry_point", "prompt", "form", "stdin", "limits", "visible"}
_REPORT: reports.Kinds = {
    "number": (int,),
    "syntax_error": (dict, NoneType),
    "tests": (list,),
    "stdout": (str,),
    "cpu_s": (float,),
    "wall_s": (float,),
    "infra_error": (str, NoneType),
}
_NULLABLE = (("stdin", str, "a string"), ("limits", Mapping, "an object"), ("visible", int, "an integer"))


@dataclass(frozen=True, slots=True)
class Program:
    """A program and the tests that it has to pass."""

    source: str
    tests: Tests
    """One of: a source with `check(candidate)`; a tuple of assert lines; a tuple of JSON strings
    `{"stdin": ..., "stdout": ...}` (see `stdio_tests`); the source of unittest classes."""
    entry_point: str
    prompt: str = ""
    """Text of the problem. Helpers that it defines in Python run in the judge, not in the program's version."""
    form: Form = "auto"
    """Kind of tests; `auto` infers it."""
    stdin: str | None = None
    """Standard input of the program."""
    limits: Limits | None = None
    """None: the sandbox's own."""
    visible: int | None = None
    """Tests whose results the author is told: n the first n, -n the last n, None or 0 all. Visible tests run first, in
    a process of their own and with limits of their own, so their results reveal nothing about the other tests. Verdicts
    keep the order of the tests."""
    _count: int | None = field(default=None, init=False, repr=False, compare=False)
    """The number of tests once it is known. A copy in another process, which receives it, does not parse the tests."""

    @property
    def number_of_tests(self) -> int:
        """Number of verdicts on this program. Raises ValueError if the tests cannot be used."""
        if self._count is None:
            object.__setattr__(self, "_count", count_tests(self.tests, self.entry_point, self.form))
        assert self._count is not None
        return self._count

    @property
    def key(self) -> str:
        """Content hash; equal for equal programs with equal tests and limits."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `from_dict` and the command line."""
        data = {"program": self.source, **to_dict(self)}
        del data["source"], data["_count"]
        if not isinstance(self.tests, str):
            data["tests"] = list(self.tests)
        if self.limits is not None:
            data["limits"] = to_dict(self.limits)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Program:
        """Read a program from JSON: {program, tests, entry_point, prompt?, form?, stdin?, limits?, visible?}.

        Raises ValueError with one line for a key that is missing, unknown or of the wrong type.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"a program must be a JSON object, not {type(data).__name__}")
        reject_unknown_keys("program", data, _KEYS)
        for name in ("program", "tests"):
            if name not in data:
                raise ValueError(f"program: key {name!r} is missing")
        strings = {
            "program": data["program"],
            "form": data.get("form") or "auto",
            "entry_point": data.get("entry_point") or "",
            "prompt": data.get("prompt") or "",
        }
        for name, value in strings.items():
            if not isinstance(value, str):
                raise ValueError(f"program: {name!r} must be a string")
        if strings["form"] not in get_args(Form):
            raise ValueError(f"program: unknown form {strings['form']!r}")
        for name, kind, description in _NULLABLE:
            value = data.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
                raise ValueError(f"program: {name!r} must be {description} or null")
        tests = _tests_from_json(data["tests"])
        limits = data.get("limits")
        if limits is not None:
            limits = Limits.from_dict(limits)
        source = strings.pop("program")
        return cls(source, tests, stdin=data.get("stdin"), limits=limits, visible=data.get("visible"), **strings)


@dataclass(frozen=True, slots=True)
class StdioCase:
    """One stdin/stdout pair.

    Output is compared line by line, without blanks at the end of a line and blank lines at the end of the output. A
    line is compared word by word, and numbers by value (`inside/judge/output_comparison.py`).
    """

    stdin: str
    stdout: str

    def to_json(self) -> str:
        return json.dumps({"stdin": self.stdin, "stdout": self.stdout})


def stdio_tests(cases: Sequence[StdioCase]) -> tuple[str, ...]:
    """Return `Program.tests` for the form "stdio"."""
    return tuple(case.to_json() for case in cases)


def count_tests(tests: Tests, entry_point: str, form: Form = "auto") -> int:
    """Return the number of verdicts on these tests. Raises ValueError if parsing fails or finds no test."""
    return suite_parser.count_tests(tests, entry_point, form)


def _tests_from_json(tests: Any) -> Tests:
    """Read tests: a source, or a list of assert lines, JSON strings of stdio cases, or stdio cases as objects."""
    if isinstance(tests, str):
        return tests
    if not isinstance(tests, list | tuple):
        raise ValueError("program: 'tests' must be a string or a list")
    lines = []
    for item in tests:
        if isinstance(item, Mapping):
            if set(item) != {"stdin", "stdout"} or not all(isinstance(text, str) for text in item.values()):
                raise ValueError("program: a test object must hold the strings 'stdin' and 'stdout'")
            item = StdioCase(**item).to_json()
        if not isinstance(item, str):
            raise ValueError("program: every item of 'tests' must be a string or a {stdin, stdout} object")
        lines.append(item)
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """The verdicts on one program, in the order of its tests."""

    tests: tuple[TestResult, ...]
    syntax_error: SyntaxDiagnosis | None
    stdout: str
    cpu_s: float
    """CPU seconds of the program itself."""
    wall_s: float
    isolation: str
    """The level of the sandbox."""
    trusted: bool
    """False if any verdict is untrusted, because the program could have forged it: the test ran in a process of the
    program (unittest classes, tests that pass functions to the program, level `none`) or compared the program's own
    objects with each other."""
    infra_error: str | None = None
    """Set if the sandbox failed, not the program; `tests` then carry no information about the program."""

    @property
    def passed(self) -> int:
        return sum(test.status == "pass" for test in self.tests)

    @property
    def trusted_passed(self) -> int:
        """Number of passes that cannot have been forged."""
        return sum(test.status == "pass" and test.trusted for test in self.tests)

    @property
    def total(self) -> int:
        return len(self.tests)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with the keys of `marl-ray sandbox run`; `infra_error` only if set."""
        syntax_error = self.syntax_error
        data: dict[str, Any] = {
            "isolation": self.isolation,
            "trusted": self.trusted,
            "syntax_error": None if syntax_error is None else to_dict(syntax_error),
            "tests": [to_dict(test) for test in self.tests],
            "passed": self.passed,
            "total": self.total,
            "stdout": self.stdout,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
        }
        if self.infra_error is not None:
            data["infra_error"] = self.infra_error
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExecutionReport:
        """Read the output of `to_dict`; `passed` and `total` are computed, not read."""
        fields = {name: data[name] for name in ("stdout", "cpu_s", "wall_s", "isolation", "trusted")}
        syntax_error = None
        if data["syntax_error"] is not None:
            syntax_error = SyntaxDiagnosis(**data["syntax_error"])
        tests = tuple(TestResult(**test) for test in data["tests"])
        return cls(tests, syntax_error, infra_error=data.get("infra_error"), **fields)


def failed_report(
    program: Program,
    isolation: str,
    verdict: TestResult = _ERROR,
    *,
    infra_error: str | None = None,
    wall_s: float = 0.0,
) -> ExecutionReport:
    """Return a report with the same verdict on every test, for a program that no judge could evaluate."""
    tests: tuple[TestResult, ...] = ()
    with contextlib.suppress(ValueError):
        tests = (verdict,) * program.number_of_tests
        suite = suite_parser.parse_tests(program.tests, program.entry_point, program.form)
        tests = tuple(replace(verdict, source=case.source) for case in suite.cases)
    return ExecutionReport(tests, None, "", 0.0, wall_s, isolation, True, infra_error)


def read_report(wire: Any, program: Program, limits: Limits, isolation: str) -> ExecutionReport:
    """Return the report that a judge has sent on a program. Raises MalformedReport.

    Every part is checked, since a test may have taken the judge over. A report of a sandbox failure has no tests.
    """
    fields = reports.read_object(wire, _REPORT)
    tests: tuple[TestResult, ...] = ()
    if fields["infra_error"] is None:
        tests = tuple(reports.read_verdicts(fields["tests"], program.number_of_tests))
    if isolation == "none":
        tests = tuple(replace(test, trusted=False) for test in tests)
    return ExecutionReport(
        tests=tests,
        syntax_error=reports.read_syntax_error(fields["syntax_error"]),
        stdout=reports.read_text(fields["stdout"], limits.max_output_bytes),
        cpu_s=reports.read_seconds(fields["cpu_s"]),
        wall_s=reports.read_seconds(fields["wall_s"]),
        isolation=isolation,
        trusted=all(test.trusted for test in tests),
        infra_error=fields["infra_error"],
    )
