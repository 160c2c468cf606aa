"""Writes `marl_ray/toy/tasks.jsonl`, the quickstart's task set: `python -m tools.toy.make_tasks`.

The file is deterministic; HumanEval's fields, plus `split` (train or eval) and the two functions of a full-reward
joint answer (`aux_solution`, `main_solution`), which tests use and no agent sees.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from marl_ray.toy import TASKS_PATH
from tools.toy.families import Problem, split_problems


def task_row(problem: Problem, number: int, split: str) -> dict[str, str]:
    """One line of the file."""
    v = problem.argument
    return {
        "task_id": f"toy/{number:03d}",
        "prompt": problem.prompt,
        "entry_point": problem.entry_point,
        "canonical_solution": f"    return {problem.whole()}\n",
        "test": problem.tests(),
        "split": split,
        "family": problem.family.name,
        "aux_solution": f"def aux({v}):\n    return {problem.part()}",
        "main_solution": f"def {problem.entry_point}({v}):\n    return {problem.rest(f'aux({v})')}",
    }


def task_rows() -> list[dict[str, str]]:
    """All rows, families interleaved so that any slice of a split holds all of them."""
    rows: list[dict[str, str]] = []
    splits = split_problems()
    for split in ("train", "eval"):
        by_family: dict[str, list[Problem]] = {}
        for problem in splits[split]:
            by_family.setdefault(problem.family.name, []).append(problem)
        for group in zip(*by_family.values(), strict=True):
            rows += [task_row(problem, len(rows) + i, split) for i, problem in enumerate(group)]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TASKS_PATH)
    out: Path = parser.parse_args().out
    rows = task_rows()
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} tasks, {sum(row['split'] == 'eval' for row in rows)} of them for evaluation: {out}")


if __name__ == "__main__":
    main()
