"""The honest set of `benchmarks/verdict_integrity` gets the verdicts of plain CPython, and no unearned pass."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

from benchmarks.verdict_integrity.honest import Honest, honest_programs
from marl_ray.sandbox import Limits, Sandbox, SandboxSettings, SandboxUnavailable, StdioCase, stdio_tests
from tests.sandbox.honest import HonestProgram
from tests.sandbox.honest.compared_verdicts import cpython_verdicts, sandbox_verdicts

pytestmark = pytest.mark.slow

PACKAGES = ("numpy",) if importlib.util.find_spec("numpy") else ()
LIMITS = Limits(test_cpu_s=5.0, test_wall_s=20.0, program_wall_s=60.0)


def as_program(honest: Honest) -> HonestProgram:
    if not honest.pairs:
        return HonestProgram(honest.name, honest.area, honest.program, honest.tests, "asserts", honest.entry_point)
    tests = stdio_tests([StdioCase(*pair) for pair in honest.pairs])
    return HonestProgram(honest.name, honest.area, honest.program, tests, "stdio", "")


def test_at_least_98_percent_agree_and_no_pass_is_unearned(capsys: pytest.CaptureFixture[str]) -> None:
    """Require 96 % at level `process`, where guests can open no file and rarer modules are missing."""
    programs = [as_program(each) for each in honest_programs() if PACKAGES or each.area != "numpy_arrays"]
    try:
        with Sandbox(SandboxSettings(isolation="auto", packages=PACKAGES, limits=LIMITS)) as sandbox:
            reports = sandbox.run_batch([program.program() for program in programs])
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation on this machine: {error}")
    agreeing: Counter[str] = Counter()
    total: Counter[str] = Counter()
    different, unearned = [], []
    for program, report in zip(programs, reports, strict=True):
        for number, (expected, actual) in enumerate(
            zip(cpython_verdicts(program), sandbox_verdicts(report), strict=True)
        ):
            total[program.group] += 1
            agreeing[program.group] += expected == actual
            if expected != actual:
                different.append(f"{program.name}[{number}]: CPython {expected}, sandbox {actual}")
            if actual == "pass" and expected != "pass":
                unearned.append(f"{program.name}[{number}]")
    with capsys.disabled():
        lines = [f"{group:16} {agreeing[group]:4} of {count:4}" for group, count in total.items()]
        print("", *different, *lines, f"{'all':16} {agreeing.total():4} of {total.total():4}", sep="\n  ")
    assert unearned == []
    assert agreeing.total() >= (0.96 if reports[0].isolation == "process" else 0.98) * total.total()
