"""Print how far the runs of a study drop below an earlier evaluation, and how far below their best one they end.

    python -m benchmarks.learning.drops grid-falls [--seeds 1,2,3,4,5,6,7,8]
    python -m benchmarks.learning.drops grid-falls --primary

A dip is the largest difference between an evaluation and an earlier, better one; a run falls if its last evaluation is
more than 0.1 below its best. --primary prints the comparisons of the seeds 9 to 40 instead. The sign-flip test of
differences that are -1, 0 and 1 is the exact test of McNemar.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.learning.__main__ import RESULTS, current
from benchmarks.learning.catalogue import STUDIES
from benchmarks.learning.grid_studies import FALL_COMPARISONS, FURTHER_SEEDS
from benchmarks.learning.primary import primary_table
from benchmarks.learning.report import peak_less_final
from benchmarks.learning.study import Study

LIMIT = 0.1
"""Difference of rewards from which a run dips or falls."""
HEADER = """| | seeds | fall | by at most | dip | by at most |
| --- | --- | --- | --- | --- | --- |"""


def dip(line: Mapping[str, Any]) -> float:
    """Return the largest drop of an evaluation's reward below an earlier one."""
    best = -float("inf")
    drop = 0.0
    for _, _, reward, *_ in line["evaluations"]:
        best = max(best, reward)
        drop = max(drop, best - reward)
    return drop


def table(lines: Sequence[Mapping[str, Any]], study: Study) -> str:
    """Return the table of a study's arms."""
    rows = [HEADER]
    for name, arm in study.arms.items():
        own = [line for line in lines if line["arm"] == name]
        if not own:
            continue
        falls = [peak_less_final(line) for line in own]
        dips = [dip(line) for line in own]
        cells = [arm.title, str(len(own))]
        for drops in (falls, dips):
            cells.append(str(sum(drop > LIMIT for drop in drops)))
            cells.append(f"{max(drops):.2f}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def primary(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the comparisons of shares that fall."""
    return primary_table(comparable(lines), FALL_COMPARISONS)


def comparable(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return whether each run of the further seeds falls, 1 or 0."""
    fallen = []
    for line in lines:
        if line["seed"] in FURTHER_SEEDS:
            falls = float(peak_less_final(line) > LIMIT)
            fallen.append({"arm": line["arm"], "seed": line["seed"], "after": {"falls": falls}})
    return fallen


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", help="default: all")
    parser.add_argument("--primary", action="store_true", help="print the comparisons of seeds 9 to 40")
    arguments = parser.parse_args(argv)
    study = STUDIES[arguments.study]
    lines = current(study, RESULTS)
    if arguments.seeds:
        seeds = {int(seed) for seed in arguments.seeds.split(",")}
        lines = [line for line in lines if line["seed"] in seeds]
    print(primary(lines) if arguments.primary else table(lines, study))


if __name__ == "__main__":
    main()
