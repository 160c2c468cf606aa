"""Measure this system on one GPU in ten minutes, without a network.

    python -m benchmarks.gpu_race --out race                           # parts 1 to 5
    python -m benchmarks.gpu_race --out race --only reference profile  # a second call; the models are kept
    python -m benchmarks.gpu_race --out race --cpu                     # tiny models, to test the kit itself

Each part runs in a process of its own with a limit of its own, and appends its rows to OUT/rows.jsonl at once: card,
versions, seconds per phase, tokens/s, FLOP utilisation, memory. A part that fails or exceeds its limit has a row with
the reason, and does not stop the next. The table comes last. Models have random weights in the geometry of Qwen2.5, and
all completions have the same length, so that all sides do the same work.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_race.parts import PARTS, Race, run_part

FIRST_CALL = ("ceilings", "models", "learner", "engine", "pair")
GRACE_S = 20.0
"""Time of a part to end in order, after its limit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of models, logs and rows")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=FIRST_CALL)
    parser.add_argument("--budget", type=float, default=580.0, metavar="SECONDS", help="limit of all parts together")
    parser.add_argument("--cpu", action="store_true", help="tiny models on a CPU")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    race = Race(options.out.resolve(), options.cpu)
    if options.part:
        run_part(race, options.part)
        return
    race.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.budget
    for part in options.only:
        _run_in_process(race, part, min(PARTS[part].limit_s, end - time.monotonic()))
    print("\n".join(table(race.rows())))


def _run_in_process(race: Race, part: str, limit_s: float) -> None:
    """Run a part, and add a row with the reason if it fails or exceeds its limit."""
    if limit_s < GRACE_S:
        race.add(part, "", failed="no time was left")
        return
    print(f"{part}: at most {limit_s:.0f} s", flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu_race", "--out", str(race.folder), "--part", part]
    if race.on_cpu:
        command.append("--cpu")
    log_path = race.folder / f"{part}.log"
    with log_path.open("w", encoding="utf-8") as log:
        # A session of its own, so that the processes that a part has started end with it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        race.add(part, "", failed=f"it took longer than {limit_s:.0f} s")
        _end(process)
        return
    if status:
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        race.add(part, "", failed=next((line for line in reversed(lines) if line.strip()), f"status {status}")[:300])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all processes of its session."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def table(rows: list[Mapping[str, Any]]) -> list[str]:
    """Return one line per row: part, case, and the measurements or the reason of the failure."""
    lines = []
    for row in rows:
        measured = ", ".join(f"{name} {_number(value)}" for name, value in row["measured"].items())
        lines.append(f"{row['part']:<10} {row['case']:<16} {measured}")
    return lines


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    main()
