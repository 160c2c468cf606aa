"""Mutants of correct programs fail in the sandbox exactly the tests that they fail without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl_ray.sandbox import Limits, Program, Sandbox
from tests.sandbox import datasets
from tests.sandbox.mutants import direct_verdicts, mutants

pytestmark = pytest.mark.slow

LIMIT_CPU_S = 0.5
CLEARLY_FAST_S = 0.15
CLEARLY_SLOW_S = 1.5
"""CPU seconds of one program differ by a factor of two between runs on a busy machine. A program that takes between
these two times by direct execution may get either verdict in the sandbox, and is skipped."""


def test_mutants_fail_the_same_tests_as_by_direct_execution(sandbox: Sandbox) -> None:
    limits = Limits(test_cpu_s=LIMIT_CPU_S, test_wall_s=10.0, max_timeouts=1, max_crashes=1)
    programs: list[Program] = []
    for number, program in enumerate(datasets.humaneval().values()):
        for source in mutants(program.source, program.entry_point, 3, seed=number):
            programs.append(replace(program, source=source, limits=limits))
    expected = direct_verdicts([(p.source, str(p.tests), p.entry_point) for p in programs], CLEARLY_SLOW_S)
    reports = sandbox.run_batch(programs)

    compared = failing = tests = 0
    differing = []
    for program, direct, report in zip(programs, expected, reports, strict=True):
        if direct is None or any(CLEARLY_FAST_S < seconds < CLEARLY_SLOW_S * 0.9 for seconds in direct[1]):
            continue  # out of memory, or so near the limit that either verdict is correct
        seen = [test.status == "pass" for test in report.tests]
        compared += 1
        tests += len(seen)
        failing += not all(direct[0])
        if seen != direct[0]:
            differing.append(
                (program.entry_point, direct, [(t.status, t.message) for t in report.tests], program.source)
            )
    assert differing == []
    assert failing >= 100, "too few failing mutants for a comparison"
    assert compared >= 0.9 * len(programs)
    assert tests > 2 * compared
