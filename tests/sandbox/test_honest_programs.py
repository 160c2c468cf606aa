"""Differential test: honest programs get the same verdicts in the sandbox as in plain CPython, test for test.

`honest/known_differences.py` lists the exceptions with their reasons; docs/explanation/sandbox.md has the same classes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from marl_ray.sandbox import ExecutionReport, Sandbox
from tests.sandbox.honest import PROGRAMS, HonestProgram
from tests.sandbox.honest.compared_verdicts import cpython_verdicts, sandbox_verdicts
from tests.sandbox.honest.known_differences import KNOWN_DIFFERENCES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reports(sandbox: Sandbox) -> dict[str, ExecutionReport]:
    """Reports on all programs, run in sequence in one sandbox, so that state could leak to the next program."""
    batch = sandbox.run_batch([honest.program() for honest in PROGRAMS])
    return {honest.name: report for honest, report in zip(PROGRAMS, batch, strict=True)}


@pytest.mark.parametrize("honest", PROGRAMS, ids=lambda honest: honest.name)
def test_verdicts_equal_cpython_except_for_known_differences(
    reports: dict[str, ExecutionReport], honest: HonestProgram
) -> None:
    if reports[honest.name].isolation == "process":
        pytest.skip("the list of differences is for levels at which guests can read Python's library")
    expected, actual = cpython_verdicts(honest), sandbox_verdicts(reports[honest.name])
    assert len(expected) == len(actual)
    different = {number for number, pair in enumerate(zip(expected, actual, strict=True)) if len(set(pair)) == 2}
    known = {number for programs in KNOWN_DIFFERENCES.values() for number in programs.get(honest.name, ())}
    messages = [(test.source, test.message) for test in reports[honest.name].tests]
    assert different == known, f"CPython {expected}, sandbox {actual}, {messages}"


def test_at_least_95_percent_of_verdicts_agree(
    reports: dict[str, ExecutionReport], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check the agreement: at least 95 %, or 93 % where guests cannot open any file."""
    agreeing: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for honest in PROGRAMS:
        pairs = zip(cpython_verdicts(honest), sandbox_verdicts(reports[honest.name]), strict=True)
        verdicts = [left == right for left, right in pairs]
        agreeing[honest.group] += sum(verdicts)
        total[honest.group] += len(verdicts)
    with capsys.disabled():
        for group, count in total.items():
            print(f"\n  {group:16} {agreeing[group]:3} of {count:3}", end="")
        print(
            f"\n  {'all':16} {agreeing.total():3} of {total.total():3} ({100 * agreeing.total() / total.total():.1f} %)"
        )
    required = 0.93 if reports[PROGRAMS[0].name].isolation == "process" else 0.95
    assert agreeing.total() >= required * total.total()


def test_known_differences_name_programs_of_the_set() -> None:
    names = [honest.name for honest in PROGRAMS]
    assert len(set(names)) == len(names) >= 150
    assert {name for programs in KNOWN_DIFFERENCES.values() for name in programs} <= set(names)
