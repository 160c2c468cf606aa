"""Honest programs as jobs: the sets of `tests/sandbox/honest` in the form that all scorers take."""

from __future__ import annotations

import ast
from typing import Any

from benchmarks.verdict_integrity.forging import Job, asserts, calls, script, unittest
from marl_ray.sandbox.inside.suites.suite_parser import parse_tests
from tests.sandbox.honest import PROGRAMS
from tests.sandbox.honest.program_set import HonestProgram


def honest_jobs() -> list[Job]:
    """Return the jobs of all honest programs."""
    return [_job(program) for program in PROGRAMS]


def _job(program: HonestProgram) -> Job:
    job: Job = {"name": program.name, "label": program.group, "program": program.source, "before": ""}
    job["entry"] = program.entry_point
    if program.form == "unittest":
        return job | unittest(str(program.tests))
    cases = parse_tests(program.tests, program.entry_point, program.form).cases  # type: ignore[arg-type]
    if program.form == "stdio":
        return job | script([(case.stdin or "", case.stdout or "") for case in cases])
    lines = [case.plain for case in cases]
    found = [_call(line, program.entry_point) for line in lines]
    simple = [case for case in found if case is not None]
    return job | (calls(simple) | {"asserts": lines} if len(simple) == len(lines) else asserts(lines))


def _call(line: str, entry: str) -> tuple[list[Any], Any] | None:
    """Return arguments and expected value of `assert entry(ARGUMENTS) == VALUE` with literals, otherwise None."""
    match ast.parse(line).body:
        case [ast.Assert(ast.Compare(ast.Call(ast.Name(name), arguments, []), [ast.Eq()], [value]))] if name == entry:
            try:
                return [ast.literal_eval(argument) for argument in arguments], ast.literal_eval(value)
            except ValueError:
                return None
    return None
