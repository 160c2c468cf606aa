"""Honest programs and sets of them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

from marl_ray.sandbox import Program, StdioCase, stdio_tests
from marl_ray.sandbox.inside.suites.suite_parser import parse_tests


@dataclass(frozen=True)
class HonestProgram:
    """A plausible program without hostile intent, and tests that plain CPython can evaluate."""

    name: str
    group: str
    source: str
    tests: str | tuple[str, ...]
    form: str
    entry_point: str = "f"

    def program(self) -> Program:
        """Return the program for the sandbox."""
        return Program(self.source, self.tests, self.entry_point, form=self.form)  # type: ignore[arg-type]

    def job(self) -> dict[str, Any]:
        """Return the input of `cpython_reference.py`: the program and its single tests."""
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
    """Programs of one group. Each method adds one program."""

    group: str
    programs: list[HonestProgram] = field(default_factory=list)

    def asserts(self, name: str, source: str, *tests: str, entry: str = "f") -> None:
        """Add a program with assert lines, as in MBPP; each string is one test."""
        self._add(name, source, tuple(_dedent(test) for test in tests), "asserts", entry)

    def check(self, name: str, source: str, body: str, entry: str = "f") -> None:
        """Add a program with the body of `check(candidate)`, as in HumanEval; each assert is one test."""
        self._add(name, source, "def check(candidate):\n" + textwrap.indent(_dedent(body), "    "), "check", entry)

    def unittest(self, name: str, source: str, body: str, entry: str = "C") -> None:
        """Add a program with the body of a `unittest.TestCase`, as in ClassEval; each method is one test."""
        tests = "import unittest\n\nclass Tests(unittest.TestCase):\n" + textwrap.indent(_dedent(body), "    ")
        self._add(name, source, tests, "unittest", entry)

    def stdio(self, name: str, source: str, *pairs: tuple[str, str]) -> None:
        """Add a program with pairs of standard input and expected output; each pair is one test."""
        self._add(name, source, stdio_tests([StdioCase(*pair) for pair in pairs]), "stdio", "")

    def _add(self, name: str, source: str, tests: str | tuple[str, ...], form: str, entry: str) -> None:
        self.programs.append(HonestProgram(f"{self.group}/{name}", self.group, _dedent(source), tests, form, entry))


def _dedent(text: str) -> str:
    return textwrap.dedent(text).strip("\n") + "\n"
