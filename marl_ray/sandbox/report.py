"""What goes into the sandbox (`Program`, `Limits`) and what comes out (`ExecutionReport`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from .inside.testforms import Form, parse_tests

Status = Literal["pass", "fail", "error", "timeout", "crash", "skipped"]
"""`fail`: a test's own assertion did not hold. `error`: an exception. `timeout`: the CPU or wall limit of the
test. `crash`: the guest process died or broke the protocol. `skipped`: the program's budget was used up."""

Tests = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one program. Seconds, MiB and bytes.

    CPU time is what decides (it keeps verdicts stable on busy machines); the wall limits catch sleeping and
    deadlocked programs, so `test_wall_s` should be a few times `test_cpu_s`. `program_wall_s` bounds all
    tests of a program together: what has not run by then is `skipped`, as it is after `max_timeouts` tests
    ran into their limit or `max_crashes` tests killed their process.
    """

    test_cpu_s: float = 10.0
    test_wall_s: float = 30.0
    program_wall_s: float = 60.0
    max_timeouts: int = 3
    max_crashes: int = 2
    memory_mb: int = 512
    max_output_bytes: int = 65536
    max_reply_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            kinds = (int, float) if item.name.endswith("_s") else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1 << 30:
                raise ValueError(f"limits.{item.name} must be a positive number, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `from_dict` reads it."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Limits:
        """Limits from JSON; keys that are left out keep their default. ValueError names an unknown key."""
        _refuse_unknown("limits", data, {item.name for item in fields(cls)})
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Program:
    """A program and the tests it is to pass.

    `tests` is one of: a source with `check(candidate)`; a tuple of assert lines; a tuple of JSON strings
    `{"stdin": ..., "stdout": ...}` (see `stdio_tests`); the source of unittest classes. `form` "auto" tells
    them apart. `prompt` is the problem's text: when it is Python, helpers it defines are run by the judge
    instead of being trusted to the program. `stdin` is what the program finds on its standard input. `limits`
    None takes the sandbox's own. `visible` says which tests' results its author will be told: the first n, with -n
    the last n, with None or 0 all. They are run first, in a process of their own and with limits of their own, so
    that what is told holds nothing of the other tests; verdicts come in the tests' order all the same.
    """

    source: str
    tests: Tests
    entry_point: str
    prompt: str = ""
    form: Form = "auto"
    stdin: str | None = None
    limits: Limits | None = None
    visible: int | None = None

    @property
    def key(self) -> str:
        """Content hash: equal programs with equal tests and limits have equal keys."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `from_dict` and the command line read it."""
        return {
            "program": self.source,
            "tests": self.tests if isinstance(self.tests, str) else list(self.tests),
            "entry_point": self.entry_point,
            "prompt": self.prompt,
            "form": self.form,
            "stdin": self.stdin,
            "limits": None if self.limits is None else self.limits.to_dict(),
            "visible": self.visible,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Program:
        """A program from JSON: {program, tests, entry_point, prompt?, form?, stdin?, limits?, visible?}.

        ValueError says in one line which key is missing, unknown or of the wrong type.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"a program must be a JSON object, not {type(data).__name__}")
        known = {"program", "tests", "entry_point", "prompt", "form", "stdin", "limits", "visible"}
        _refuse_unknown("program", data, known)
        for name in ("program", "tests"):
            if name not in data:
                raise ValueError(f"program: key {name!r} is missing")
        strings = {"program": data["program"], "entry_point": data.get("entry_point") or ""}
        strings |= {"prompt": data.get("prompt") or "", "form": data.get("form") or "auto"}
        for name, value in strings.items():
            if not isinstance(value, str):
                raise ValueError(f"program: {name!r} must be a string")
        if strings["form"] not in ("auto", "check", "asserts", "stdio", "unittest"):
            raise ValueError(f"program: unknown form {strings['form']!r}")
        stdin, limits, visible = data.get("stdin"), data.get("limits"), data.get("visible")
        if visible is not None and type(visible) is not int:
            raise ValueError("program: 'visible' must be an integer or null")
        if stdin is not None and not isinstance(stdin, str):
            raise ValueError("program: 'stdin' must be a string or null")
        if limits is not None and not isinstance(limits, Mapping):
            raise ValueError("program: 'limits' must be an object or null")
        return cls(
            source=strings["program"],
            tests=_tests_from_json(data["tests"]),
            entry_point=strings["entry_point"],
            prompt=strings["prompt"],
            form=strings["form"],  # type: ignore[arg-type]
            stdin=stdin,
            limits=None if limits is None else Limits.from_dict(limits),
            visible=visible,
        )


@dataclass(frozen=True, slots=True)
class StdioCase:
    """One stdin/stdout pair. Output is compared line by line; trailing spaces and blank lines do not count."""

    stdin: str
    stdout: str

    def to_json(self) -> str:
        return json.dumps({"stdin": self.stdin, "stdout": self.stdout})


def stdio_tests(cases: Sequence[StdioCase]) -> tuple[str, ...]:
    """`Program.tests` for the form "stdio"."""
    return tuple(case.to_json() for case in cases)


@dataclass(frozen=True, slots=True)
class TestResult:
    """The verdict on one test. `line` is a line of the program; `source` is the test's own text.

    `trusted` is False when the program had a say in the verdict beyond its data: see `ExecutionReport`.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    status: Status
    error_type: str | None
    message: str | None
    line: int | None
    source: str
    trusted: bool = True


@dataclass(frozen=True, slots=True)
class SyntaxDiagnosis:
    """Why and where a program does not parse; `line` and `column` count from 1."""

    message: str
    line: int | None
    column: int | None


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """What happened to one program.

    `trusted` is False when one of the verdicts is not: it came out of a process that ran the program (unittest
    classes, tests that hand functions to the program, level `none`), or the program was asked whether two of its own
    objects are equal. Such a pass can be forged. `infra_error` is set when
    the sandbox failed, not the program; `tests` then say nothing about it. `cpu_s` is the program's own
    processor time.
    """

    tests: tuple[TestResult, ...]
    syntax_error: SyntaxDiagnosis | None
    stdout: str
    cpu_s: float
    wall_s: float
    isolation: str
    trusted: bool
    infra_error: str | None = None

    @property
    def passed(self) -> int:
        return sum(test.status == "pass" for test in self.tests)

    @property
    def trusted_passed(self) -> int:
        """Passes that cannot have been forged."""
        return sum(test.status == "pass" and test.trusted for test in self.tests)

    @property
    def total(self) -> int:
        return len(self.tests)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `marl-ray sandbox run`; `infra_error` only where there is one."""
        data: dict[str, Any] = {
            "isolation": self.isolation,
            "trusted": self.trusted,
            "syntax_error": None if self.syntax_error is None else asdict(self.syntax_error),
            "tests": [asdict(test) for test in self.tests],
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
        """The inverse of `to_dict` (`passed` and `total` are computed, not read)."""
        syntax = data["syntax_error"]
        return cls(
            tests=tuple(TestResult(**test) for test in data["tests"]),
            syntax_error=None if syntax is None else SyntaxDiagnosis(**syntax),
            stdout=data["stdout"],
            cpu_s=data["cpu_s"],
            wall_s=data["wall_s"],
            isolation=data["isolation"],
            trusted=data["trusted"],
            infra_error=data.get("infra_error"),
        )


def count_tests(tests: Tests, entry_point: str, form: Form = "auto") -> int:
    """How many verdicts a report on these tests will hold.

    ValueError with a one-line reason when the tests cannot be parsed or hold no test at all.
    """
    return len(parse_tests(tests, entry_point, form).cases)


def failed_report(
    program: Program,
    isolation: str,
    *,
    status: Status = "error",
    error_type: str | None = None,
    message: str | None = None,
    infra_error: str | None = None,
    wall_s: float = 0.0,
) -> ExecutionReport:
    """The same verdict on every test of a program, for when no judge could look at it."""
    try:
        sources = [case.source for case in parse_tests(program.tests, program.entry_point, program.form).cases]
    except ValueError:
        sources = []
    tests = tuple(TestResult(status, error_type, message, None, source) for source in sources)
    return ExecutionReport(tests, None, "", 0.0, wall_s, isolation, True, infra_error)


def _refuse_unknown(what: str, data: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(str(key) for key in data if key not in known)
    if unknown:
        raise ValueError(f"{what}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")


def _tests_from_json(tests: Any) -> Tests:
    """A list may hold assert lines, JSON strings of stdio cases, or the stdio cases as objects."""
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
