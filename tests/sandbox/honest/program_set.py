"""What an honest program is, and how the modules of the set write theirs down."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

from marl_ray.sandbox import Program, StdioCase, stdio_tests
from marl_ray.sandbox.inside.suites.parser import parse_tests


@dataclass(frozen=True)
class HonestProgram:
    """A program that a person might hand in, and tests that plain CPython can judge."""

    name: str
    group: str
    source: str
    tests: str | tuple[str, ...]
    form: str
    entry_point: str = "f"

    def program(self) -> Program:
        """What the sandbox is given."""
        return Program(self.source, self.tests, self.entry_point, form=self.form)  # type: ignore[arg-type]

    def job(self) -> dict[str, Any]:
        """What `cpython_reference.py` is given: the program and its single tests."""
        cases = parse_tests(self.tests, self.entry_point, self.form).cases  # type: ignore[arg-type]
        return {
            "program": self.source,
            "form": self.form,
            "tests": [case.plain for case in cases],
            "scripts": [[case.stdin, case.stdout] for case in cases],
            "units": [case.unit for case in cases],
            "suite": self.tests if isinstance(self.tests, str) else "",
        }


@dataclass
class ProgramSet:
    """The programs of one class; the methods add one each, named after the class."""

    group: str
    programs: list[HonestProgram] = field(default_factory=list)

    def asserts(self, name: str, source: str, *tests: str, entry: str = "f") -> None:
        """Assert lines, as in MBPP; each string is one test."""
        self._add(name, source, tuple(_plain(test) for test in tests), "asserts", entry)

    def check(self, name: str, source: str, body: str, entry: str = "f") -> None:
        """The body of `check(candidate)`, as in HumanEval; each assert is one test."""
        self._add(name, source, "def check(candidate):\n" + textwrap.indent(_plain(body), "    "), "check", entry)

    def unittest(self, name: str, source: str, body: str, entry: str = "C") -> None:
        """The body of a `unittest.TestCase`, as in ClassEval; each method is one test."""
        tests = "import unittest\n\nclass Tests(unittest.TestCase):\n" + textwrap.indent(_plain(body), "    ")
        self._add(name, source, tests, "unittest", entry)

    def stdio(self, name: str, source: str, *pairs: tuple[str, str]) -> None:
        """Pairs of standard input and the output wanted; each is one test."""
        self._add(name, source, stdio_tests([StdioCase(*pair) for pair in pairs]), "stdio", "")

    def _add(self, name: str, source: str, tests: str | tuple[str, ...], form: str, entry: str) -> None:
        self.programs.append(HonestProgram(f"{self.group}/{name}", self.group, _plain(source), tests, form, entry))


def _plain(text: str) -> str:
    return textwrap.dedent(text).strip("\n") + "\n"
