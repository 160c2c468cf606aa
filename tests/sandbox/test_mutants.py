"""Wrong programs fail in the sandbox exactly where they fail without it."""

from __future__ import annotations

from dataclasses import replace

from marl_ray.sandbox import Limits, Program, Sandbox, SandboxSettings
from tests.sandbox import datasets
from tests.sandbox.mutants import direct_verdicts, mutants

LIMIT_CPU_S = 0.5
CLEARLY_FAST_S = 0.15
CLEARLY_SLOW_S = 1.5
"""A processor with a busy neighbour makes one program's CPU seconds differ by a factor of two from run to run: what
direct execution finds between these two may be either verdict in the sandbox, and is left out."""


def test_mutants_fail_where_direct_execution_fails() -> None:
    programs: list[Program] = []
    for number, program in enumerate(datasets.humaneval().values()):
        for source in mutants(program.source, program.entry_point, 3, seed=number):
            programs.append(replace(program, source=source))
    expected = direct_verdicts([(p.source, str(p.tests), p.entry_point) for p in programs], CLEARLY_SLOW_S)
    limits = Limits(test_cpu_s=LIMIT_CPU_S, test_wall_s=10.0, max_timeouts=1, max_crashes=1)
    with Sandbox(SandboxSettings(limits=limits)) as sandbox:
        reports = sandbox.run_batch(programs)

    compared = failing = tests = 0
    differing = []
    for program, direct, report in zip(programs, expected, reports, strict=True):
        if direct is None or any(CLEARLY_FAST_S < seconds < CLEARLY_SLOW_S * 0.9 for seconds in direct[1]):
            continue  # died for want of memory, or so near the limit that either verdict is right
        seen = [test.status == "pass" for test in report.tests]
        compared += 1
        tests += len(seen)
        failing += not all(direct[0])
        if seen != direct[0]:
            differing.append(
                (program.entry_point, direct, [(t.status, t.message) for t in report.tests], program.source)
            )
    assert differing == []
    assert failing >= 100, "too few mutants that fail to say anything"
    assert compared >= 0.9 * len(programs)
    assert tests > 2 * compared
