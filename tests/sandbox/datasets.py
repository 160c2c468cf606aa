"""Public problems as sandbox programs, read from local copies. None of this data is in the repository."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

from marl_ray.sandbox import Program

DATA = Path(os.environ.get("MARL_RAY_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def load(name: str) -> list[dict[str, Any]]:
    """The rows of a local copy; skips the test that asks where there is none."""
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"no local copy of {name} (set MARL_RAY_DATA to a folder with {name}.jsonl)")
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def humaneval() -> dict[str, Program]:
    """HumanEval's canonical solutions by task."""
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
    """QuixBugs by task; `solution` is canonical_solution or buggy_solution."""
    return {
        row["task_id"]: Program(row[solution], row["test"], row["entry_point"], form="check")
        for row in load("quixbugs")
    }


def mbpp() -> dict[int, Program]:
    """MBPP's own solutions by task. The entry point is what its first test calls of what the program defines."""
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
    """ClassEval's solutions by task, tested by unittest classes."""
    return {
        row["task_id"]: Program(row["solution_code"], row["test"], row["class_name"], form="unittest")
        for row in load("classeval")
    }
