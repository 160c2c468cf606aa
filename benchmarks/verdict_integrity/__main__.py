"""Run the forging and the honest programs with every scorer, and print the table.

    python -m benchmarks.verdict_integrity run SCORER... --venvs FOLDER   # score all programs, write rows/SCORER.json
    python -m benchmarks.verdict_integrity table                          # the table of the documentation

A scorer NAME of PyPI runs in the virtual environment FOLDER/NAME, into which its package has to be installed. Without
names, all scorers run whose environment exists. "marl_ray" is the sandbox of this package.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.verdict_integrity import ours
from benchmarks.verdict_integrity.forging import Job, load
from benchmarks.verdict_integrity.honest_jobs import honest_jobs
from benchmarks.verdict_integrity.jail import Jail
from benchmarks.verdict_integrity.scorers import SCORERS

OURS = "marl_ray"
PATTERNS = ("cpython", "exec in one process", "exit status of a subprocess")
ROWS = Path(__file__).with_name("rows")
SEED = 1


def control(job: Job) -> Job:
    """Return the job with a program that knows the answers: every scorer has to give it the full score."""
    if job["kind"] == "calls":
        answers = [eval(case)[1] for case in job["cases"]]
        program = f"def f(x):\n    return {answers!r}[x - 1]\n"
    else:
        program = f"answers = {[pair[1] for pair in job['pairs']]!r}\nprint(answers[int(input()) - 1].strip())\n"
    return {**job, "program": program, "before": ""}


def score_all(scorer: str, python: str, seed: int) -> dict[str, Any]:
    """Return the results of one scorer on all programs."""
    forging = [one.job(seed) for one in load()] if scorer != "cpython" else []
    controls = [control(job) for job in forging if job["kind"] in ("calls", "script")][::10]
    honest = honest_jobs()
    started = time.monotonic()
    row: dict[str, Any] = {"scorer": scorer, "version": _version(scorer, python), "seed": seed}
    if scorer == OURS:
        with ours.open_sandbox() as sandbox:
            row["version"] = sandbox.level
            for part, jobs in (("controls", controls), ("honest", honest), ("forging", forging)):
                row[part] = {job["name"]: _ours(sandbox, job) for job in jobs}
    else:
        with Jail(scorer, python) as jail:
            for part, jobs in (("controls", controls), ("honest", honest), ("forging", forging)):
                row[part] = {
                    job["name"]: [result, round(seconds, 4)] for job in jobs for result, seconds in [jail.score(job)]
                }
    return row | {"seconds": round(time.monotonic() - started)}


def _ours(sandbox: Any, job: Job) -> list[Any]:
    """Return the share of passed tests, the seconds, and the share of trusted passes."""
    started = time.perf_counter()
    report = ours.run(sandbox, job)
    seconds = time.perf_counter() - started
    return [report.passed / report.total, round(seconds, 4), report.trusted_passed / report.total]


def _version(scorer: str, python: str) -> str:
    if scorer == OURS or scorer in PATTERNS:
        return ""
    code = f"import importlib.metadata as m; print(m.version({scorer!r}))"
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout.strip()


def figures(row: dict[str, Any], reference: dict[str, Any], common: Collection[str]) -> dict[str, Any]:
    """Return the figures of one scorer. `common`: names of the forging programs that all scorers take."""
    forging = {name: result for name, result in row["forging"].items() if result[0] is not None}
    honest = {name: result for name, result in row["honest"].items() if result[0] is not None}
    right = {name: all(verdict == "pass" for verdict in reference["honest"][name][0]) for name in honest}
    # Of this package, a forged pass counts if it is trusted: other passes are marked.
    score = {name: result[-1] if row["scorer"] == OURS else result[0] for name, result in forging.items()}
    return {
        "scorer": row["scorer"],
        "version": row["version"],
        "taken": len(forging),
        "full": sum(value == 1.0 for value in score.values()),
        "some": sum(value not in (0.0, "lost") for value in score.values()),
        "untrusted": sum(result[0] not in (0.0, "lost") for result in forging.values()),
        "common": sum(score[name] == 1.0 for name in common),
        "lost": sum(value == "lost" for value in score.values()),
        "honest": len(honest),
        "agree": sum((result[0] == 1.0) == right[name] for name, result in honest.items()),
        "too kind": sum(result[0] == 1.0 and not right[name] for name, result in honest.items()),
        "ms": statistics.median(result[1] for result in honest.values() if result[0] == 1.0) * 1e3,
        "controls": [sum(r[0] == 1.0 for r in row["controls"].values()),
                     sum(r[0] is not None for r in row["controls"].values())],
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown, the most forged scorer first. Raises ValueError if a control failed."""
    reference = next(row for row in rows if row["scorer"] == "cpython")
    scorers = [row for row in rows if row is not reference]
    names = scorers[0]["forging"]
    common = [name for name in names if all(row["forging"][name][0] is not None for row in scorers)]
    found = [figures(row, reference, common) for row in scorers]
    lines = [f"| scorer | version | forged | of the {len(common)} | some credit | no verdict | honest agreement | ms |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one in sorted(found, key=lambda one: -one["full"] / one["taken"]):
        if one["controls"][0] != one["controls"][1]:
            raise ValueError(f"{one['scorer']}: correct programs did not get the full score: {one['controls']}")
        mark = f" ({one['untrusted']} marked)" if one["scorer"] == OURS else ""
        lines.append(
            f"| {one['scorer']} | {one['version']} | {one['full']} of {one['taken']} ({one['full'] / one['taken']:.0%})"
            f"{mark} | {one['common'] / len(common):.0%} | {one['some']} | {one['lost']} "
            f"| {one['agree'] / one['honest']:.1%} of {one['honest']}, {one['too kind']} too kind | {one['ms']:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge forging and honest programs with every scorer.")
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("scorers", nargs="*", help="default: all with an environment")
    parser.add_argument("--venvs", type=Path, default=Path("venvs"))
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    if arguments.command == "table":
        print(table([json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROWS.glob("*.json"))]))
        return 0
    ROWS.mkdir(exist_ok=True)
    for scorer in arguments.scorers or [OURS, *SCORERS]:
        local = scorer == OURS or scorer in PATTERNS
        python = sys.executable if local else str(arguments.venvs / scorer / "bin" / "python")
        if not Path(python).exists():
            print(f"{scorer}: no environment {arguments.venvs / scorer}", file=sys.stderr)
            continue
        row = score_all(scorer, python, arguments.seed)
        (ROWS / f"{scorer.replace(' ', '_')}.json").write_text(json.dumps(row) + "\n", encoding="utf-8")
        print(scorer, row["seconds"], "s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
