"""The solutions that public datasets ship with pass; those that do not are listed with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from marl_ray.sandbox import ExecutionReport, Limits, Program, Sandbox, count_tests
from tests.sandbox import datasets

MBPP_FAILING: dict[int, str] = {}
"""None. (Objects that two problems build before their tests are made in the program: see `datasets.mbpp`.)"""

_PACKAGE = "imports a package that is not in the standard library"
_FILES = "writes files or opens a database on disk, which a guest without a scratch folder may not"
CLASSEVAL_FAILING: dict[str, str] = {
    "ClassEval_14": _FILES,
    "ClassEval_25": _FILES,
    "ClassEval_26": _FILES,
    "ClassEval_34": _PACKAGE,  # docx
    "ClassEval_38": _PACKAGE,  # openpyxl
    "ClassEval_44": _PACKAGE,  # gensim, bs4
    "ClassEval_45": _PACKAGE,  # PIL
    "ClassEval_48": "one test wants the name of its author's computer for an address",
    "ClassEval_51": _PACKAGE,  # numpy
    "ClassEval_57": _PACKAGE,  # numpy
    "ClassEval_59": _PACKAGE,  # numpy
    "ClassEval_60": _FILES,
    "ClassEval_69": _PACKAGE,  # PyPDF2
    "ClassEval_84": _FILES,
    "ClassEval_92": _FILES,
    "ClassEval_93": _PACKAGE,  # numpy, gensim
    "ClassEval_98": _FILES,
    "ClassEval_99": _FILES,
}

PATIENT = Limits(test_cpu_s=30.0, test_wall_s=120.0, program_wall_s=240.0, memory_mb=512)
"""What the solutions are run with, however slow the machine: one of MBPP's takes 3 to 6 CPU seconds."""

CLASSEVAL_WITH_FILES = [task for task, reason in CLASSEVAL_FAILING.items() if reason is _FILES]
"""They pass where programs have a scratch folder (`host/test_scratch_folders.py`)."""


def run(sandbox: Sandbox, programs: Mapping[Any, Program]) -> dict[Any, ExecutionReport]:
    patient = [program if program.limits else replace(program, limits=PATIENT) for program in programs.values()]
    return dict(zip(programs, sandbox.run_batch(patient), strict=True))


def not_passed(reports: Mapping[Any, ExecutionReport]) -> dict[Any, list[tuple[str, str | None, str | None]]]:
    """Every test that did not pass, by task; a report without tests counts as one."""
    return {
        task: [(t.status, t.error_type, t.message) for t in report.tests if t.status != "pass"]
        for task, report in reports.items()
        if report.passed != report.total or report.total == 0 or report.infra_error
    }


def test_humaneval_solutions_pass(sandbox: Sandbox) -> None:
    programs = datasets.humaneval()
    reports = run(sandbox, programs)
    assert len(reports) == 164
    assert not_passed(reports) == {}
    for task, report in reports.items():
        program = programs[task]
        assert report.total == count_tests(program.tests, program.entry_point, program.form)
    assert sum(report.total for report in reports.values()) > 1000
    assert [task for task, report in reports.items() if not report.trusted] == []


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_mbpp_solutions_pass(sandbox: Sandbox) -> None:
    reports = run(sandbox, datasets.mbpp())
    failing = not_passed(reports)
    assert failing.keys() == MBPP_FAILING.keys(), failing
    assert len(reports) >= 900
    assert [task for task, report in reports.items() if report.total < 3] == []


def test_classeval_solutions_pass(sandbox: Sandbox) -> None:
    reports = run(sandbox, datasets.classeval())
    failing = not_passed(reports)
    assert failing.keys() == CLASSEVAL_FAILING.keys(), failing
    for task, reason in CLASSEVAL_FAILING.items():
        if reason is _PACKAGE:
            assert {kind for _, kind, _ in failing[task]} == {"ModuleNotFoundError"}, (task, failing[task])
    assert all(not report.trusted for report in reports.values()), "tests in the guest can be forged"


def test_quixbugs(sandbox: Sandbox) -> None:
    right = run(sandbox, datasets.quixbugs("canonical_solution"))
    short = Limits(test_cpu_s=0.5, max_timeouts=1)  # some of the bugs are endless loops
    buggy = {task: replace(program, limits=short) for task, program in datasets.quixbugs("buggy_solution").items()}
    wrong = run(sandbox, buggy)
    assert not_passed(right) == {}
    assert not_passed(wrong).keys() == wrong.keys(), "a known bug was not found"
