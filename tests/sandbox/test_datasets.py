"""The solutions of public datasets pass; known failures are listed with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marl_ray.sandbox import Limits, Sandbox, count_tests
from tests.sandbox import datasets
from tests.sandbox.datasets import failures, run_solutions

pytestmark = pytest.mark.slow


def test_humaneval_solutions_pass(sandbox: Sandbox) -> None:
    programs = datasets.humaneval()
    reports = run_solutions(sandbox, programs)
    assert len(reports) == 164
    assert failures(reports) == {}
    for task, report in reports.items():
        program = programs[task]
        assert report.total == count_tests(program.tests, program.entry_point, program.form)
    assert sum(report.total for report in reports.values()) > 1000
    assert [task for task, report in reports.items() if not report.trusted] == []


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_mbpp_solutions_pass(sandbox: Sandbox) -> None:
    reports = run_solutions(sandbox, datasets.mbpp())
    failing = failures(reports)
    assert failing == {}
    assert len(reports) >= 900
    assert [task for task, report in reports.items() if report.total < 3] == []


def test_classeval_solutions_pass_except_those_that_need_packages_or_files(sandbox: Sandbox) -> None:
    reports = run_solutions(sandbox, datasets.classeval())
    failing = failures(reports)
    assert failing.keys() == datasets.CLASSEVAL_FAILING.keys(), failing
    for task, reason in datasets.CLASSEVAL_FAILING.items():
        if reason is datasets.NEEDS_PACKAGE:
            assert {kind for _, kind, _ in failing[task]} == {"ModuleNotFoundError"}, (task, failing[task])
    assert sum(report.trusted for report in reports.values()) == 48
    assert sum(test.trusted for report in reports.values() for test in report.tests) == 1104


def test_quixbugs_solutions_pass_and_bugs_are_found(sandbox: Sandbox) -> None:
    correct = run_solutions(sandbox, datasets.quixbugs("canonical_solution"))
    short = Limits(test_cpu_s=0.5, max_timeouts=1)  # some of the bugs are endless loops
    buggy = {task: replace(program, limits=short) for task, program in datasets.quixbugs("buggy_solution").items()}
    incorrect = run_solutions(sandbox, buggy)
    assert failures(correct) == {}
    assert failures(incorrect).keys() == incorrect.keys(), "a known bug was not found"
