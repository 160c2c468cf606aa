"""Write the bundled task files, `marl_ray/toy/*.jsonl`: `python -m tools.toy.make_tasks`.

The files are deterministic. Rows have HumanEval's fields, `split` (train, eval or unseen), `family`, and the two
functions of a full-reward joint answer (`aux_solution`, `main_solution`), which only tests use.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

from tools.toy.sets import SETS


def task_row(problem: Any, task_id: str, split: str) -> dict[str, str]:
    """Return one row of a task file."""
    aux, main = problem.joint
    return {
        "task_id": task_id,
        "prompt": problem.prompt,
        "entry_point": problem.entry_point,
        "canonical_solution": f"    return {problem.whole()}\n",
        "test": problem.tests(),
        "split": split,
        "family": problem.family.name,
        "aux_solution": aux,
        "main_solution": main,
    }


def task_rows(name: str) -> list[dict[str, str]]:
    """Return all rows of a set, with interleaved families so that a long enough slice contains all of them."""
    rows: list[dict[str, str]] = []
    chosen = SETS[name]
    splits = chosen.split_problems()
    for split in chosen.tasks:
        by_family: dict[str, list[Any]] = {}
        for problem in splits[split]:
            by_family.setdefault(problem.family.name, []).append(problem)
        for group in zip_longest(*by_family.values()):
            rows += [task_row(p, f"{name}/{len(rows) + i:03d}", split) for i, p in enumerate(filter(None, group))]
    return rows


def main() -> None:
    own_tasks = {chosen.tasks_path: name for name, chosen in reversed(SETS.items())}  # sets may share a file
    for name, chosen in ((name, SETS[name]) for name in own_tasks.values()):
        rows = task_rows(name)
        chosen.tasks_path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        counts = ", ".join(f"{split} {sum(row['split'] == split for row in rows)}" for split in chosen.tasks)
        print(f"{chosen.tasks_path}: {counts}")


if __name__ == "__main__":
    main()
