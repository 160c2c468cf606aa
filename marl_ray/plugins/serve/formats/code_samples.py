"""EvalPlus's samples.jsonl, LiveCodeBench's custom-evaluator JSON, and the completions file of `marl-ray score`.

| format | content |
|---|---|
| evalplus | one line per sample: `{"task_id": "HumanEval/0", "solution": PROGRAM}`, or `completion` after the prompt |
| livecodebench | a list with one object per task: `{"question_id": ID, "code_list": [PROGRAM, ...]}` |
| completions | one line per sample: `{"task_id": ID, "completions": [TEXT, ...]}`, one text per agent; or `program` |
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.data.loading import read_jsonl
from marl_ray.plugins.serve.formats.evaluation_samples import EvaluationSample
from marl_ray.sandbox import syntax_tree

LIVECODEBENCH = "LiveCodeBench/"
CLASS = "Solution"
"""The class of LeetCode's problems."""


def evalplus_text(samples: Sequence[EvaluationSample]) -> str:
    """Return EvalPlus's samples.jsonl with complete programs."""
    return "".join(_line({"task_id": sample.task.id, "solution": sample.program}) for sample in samples)


def livecodebench_text(samples: Sequence[EvaluationSample]) -> str:
    """Return the JSON that LiveCodeBench's custom evaluator reads."""
    programs: dict[str, list[str]] = {}
    for sample in samples:
        name = sample.task.id.removeprefix(LIVECODEBENCH)
        programs.setdefault(name, []).append(sample.program)
    rows = [{"question_id": name, "code_list": code_list} for name, code_list in programs.items()]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def completions_text(samples: Sequence[EvaluationSample]) -> str:
    """Return the completions file of `marl-ray score`, with one text per agent."""
    return "".join(_line({"task_id": sample.task.id, "completions": sample.responses}) for sample in samples)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def read_programs(path: Path, tasks: Mapping[str, Task]) -> list[dict[str, Any]]:
    """Return the rows of a completions file for programs in EvalPlus's or LiveCodeBench's format, which are run as they
    are. `tasks` has the tasks by id. Raises UserError."""
    path = expand_home(path)
    try:
        if path.suffix == ".json":
            rows = _read_json(path)
        else:
            rows = [row for _, row in read_jsonl(path, "samples file")]
    except OSError as error:
        raise UserError(f"samples file {path} cannot be read ({error.strerror})") from None
    found: list[dict[str, Any]] = []
    for number, row in enumerate(rows, 1):
        try:
            found += _programs(row, tasks)
        except UserError as error:
            raise UserError(f"samples file {path}, entry {number}: {error}") from None
    return found


def _read_json(path: Path) -> list[Any]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"samples file {path} is not JSON") from None
    if not isinstance(rows, list):
        raise UserError(f"samples file {path} should be a list of objects")
    return rows


def _programs(row: Any, tasks: Mapping[str, Task]) -> list[dict[str, Any]]:
    if not isinstance(row, dict):
        raise UserError("not an object")
    if "question_id" in row:
        programs = row.get("code_list")
        name = str(row["question_id"])
        if name not in tasks:
            name = f"{LIVECODEBENCH}{name}"
        if not isinstance(programs, list) or not all(isinstance(program, str) for program in programs):
            raise UserError("code_list should be a list of programs")
        task = tasks.get(name)
        if task is not None:
            # LiveCodeBench asks for a method of a class `Solution`.
            programs = [as_function(program, task.fields["entry_point"]) for program in programs]
        return [{"task_id": name, "program": program} for program in programs]
    name = str(row.get("task_id"))
    solution = row.get("solution")
    completion = row.get("completion")
    if isinstance(solution, str):
        return [{"task_id": name, "program": solution}]
    if not isinstance(completion, str):
        raise UserError("neither a solution nor a completion (EvalPlus), nor a code_list (LiveCodeBench)")
    if name not in tasks:
        raise UserError(f"the dataset has no task {name!r}, whose prompt the completion continues")
    return [{"task_id": name, "program": tasks[name].prompt + completion}]


WRITERS: dict[str, Callable[[Sequence[EvaluationSample]], str]] = {
    "evalplus": evalplus_text,
    "livecodebench": livecodebench_text,
    "completions": completions_text,
}
"""Writers of samples by format."""


def as_function(program: str, name: str) -> str:
    """Return a program with the method `name` of its class `Solution` as a function, unchanged if it has none."""
    try:
        statements = syntax_tree(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program
    for node in statements:
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            if name in methods:
                return f"{program}\n\n{name} = {CLASS}().{name}\n"
    return program
