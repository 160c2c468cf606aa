"""Public problems as sandbox programs, read from local copies, and helpers that run them.

None of this data is in the repository.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marl_ray.sandbox import ExecutionReport, Limits, Program, Sandbox

DATA = Path(os.environ.get("MARL_RAY_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")

PATIENT_LIMITS = Limits(test_cpu_s=30.0, test_wall_s=120.0, program_wall_s=240.0, memory_mb=512)
"""Limits for known solutions on slow machines: one of MBPP's takes 3 to 6 CPU seconds."""

NEEDS_PACKAGE = "imports a package that is not in the standard library"
NEEDS_FILES = "writes files or opens a database on disk, which a guest without a scratch folder may not"
CLASSEVAL_FAILING: dict[str, str] = {
    "ClassEval_14": NEEDS_FILES,
    "ClassEval_25": NEEDS_FILES,
    "ClassEval_26": NEEDS_FILES,
    **({} if sys.version_info < (3, 12) else {"ClassEval_31": "compares floats, and Python 3.12 adds them otherwise"}),
    "ClassEval_34": NEEDS_PACKAGE,  # docx
    "ClassEval_38": NEEDS_PACKAGE,  # openpyxl
    "ClassEval_44": NEEDS_PACKAGE,  # gensim, bs4
    "ClassEval_45": NEEDS_PACKAGE,  # PIL
    "ClassEval_48": "one test wants the name of its author's computer for an address",
    "ClassEval_51": NEEDS_PACKAGE,  # numpy
    "ClassEval_57": NEEDS_PACKAGE,  # numpy
    "ClassEval_59": NEEDS_PACKAGE,  # numpy
    "ClassEval_60": NEEDS_FILES,
    "ClassEval_69": NEEDS_PACKAGE,  # PyPDF2
    "ClassEval_84": NEEDS_FILES,
    "ClassEval_92": NEEDS_FILES,
    "ClassEval_93": NEEDS_PACKAGE,  # numpy, gensim
    "ClassEval_98": NEEDS_FILES,
    "ClassEval_99": NEEDS_FILES,
}
"""Solutions that do not pass, with the reason."""
CLASSEVAL_OF_NOW = ("ClassEval_20", "ClassEval_36")
"""Tests that compare the second before a call with the second in it, and fail now and then."""
CLASSEVAL_WITH_FILES = [task for task, reason in CLASSEVAL_FAILING.items() if reason is NEEDS_FILES]
"""Solutions that pass where programs have a scratch folder (`host/test_scratch_folders.py`)."""


def load(name: str) -> list[dict[str, Any]]:
    """Return the rows of a local copy; skip the calling test if there is none."""
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no local copy of {name} (set MARL_RAY_DATA to a folder with {name}.jsonl)")
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def humaneval() -> dict[str, Program]:
    """Return HumanEval's canonical solutions by task."""
    return {
        row["task_id"]: Program(
            source=row["prompt"] + row["canonical_solution"],
            tests=row["test"],
            entry_point=row["entry_point"],
            prompt=row["prompt"],
        )
        for row in load("humaneval")
    }


def quixbugs(solution: str) -> dict[str, Program]:
    """Return QuixBugs' programs by task; `solution` is canonical_solution or buggy_solution."""
    return {
        row["task_id"]: Program(row[solution], row["test"], row["entry_point"], form="check")
        for row in load("quixbugs")
    }


def mbpp() -> dict[int, Program]:
    """Return MBPP's solutions by task. The entry point is the program's function that the first test calls."""
    programs = {}
    for row in load("mbpp"):
        code = row["code"].replace("\r\n", "\n")
        setup = row["test_setup_code"].replace("\r\n", "\n")
        defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        called = [node.id for node in ast.walk(ast.parse(row["test_list"][0])) if isinstance(node, ast.Name)]
        entry_point = next(name for name in called if name in defined)
        # Setup code builds objects of the program's own classes, so it belongs to the program.
        programs[row["task_id"]] = Program(f"{code}\n{setup}", tuple(row["test_list"]), entry_point)
    return programs


def classeval() -> dict[str, Program]:
    """Return ClassEval's solutions by task, without CLASSEVAL_OF_NOW, tested by unittest classes."""
    return {
        row["task_id"]: Program(row["solution_code"], row["test"], row["class_name"], form="unittest")
        for row in load("classeval")
        if row["task_id"] not in CLASSEVAL_OF_NOW
    }


def run_solutions(sandbox: Sandbox, programs: Mapping[Any, Program]) -> dict[Any, ExecutionReport]:
    """Run programs by task, with patient limits unless a program has limits of its own."""
    patient = [program if program.limits else replace(program, limits=PATIENT_LIMITS) for program in programs.values()]
    return dict(zip(programs, sandbox.run_batch(patient), strict=True))


def failures(reports: Mapping[Any, ExecutionReport]) -> dict[Any, list[tuple[str, str | None, str | None]]]:
    """Return every test that did not pass, by task; a report without tests counts as a failure."""
    return {
        task: [(t.status, t.error_type, t.message) for t in report.tests if t.status != "pass"]
        for task, report in reports.items()
        if report.passed != report.total or report.total == 0 or report.infra_error
    }
