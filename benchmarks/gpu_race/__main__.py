"""Measure this system and its peers on one GPU, without a network, in two calls of at most ten minutes each.

    python -m benchmarks.gpu_race --out race                  # machine, models, learner, engine, pair, CoMLRL
    python -m benchmarks.gpu_race --out race --second         # two turns of 3B, CoMLRL, TRL, a profile
    python -m benchmarks.gpu_race --out race --only tags      # some parts; the models are kept
    python -m benchmarks.gpu_race --out race --cpu            # tiny models, to test the kit itself

Each part runs in a process of its own with a limit of its own, and appends its rows to OUT/rows.jsonl at once: card,
versions, seconds per phase, tokens/s, FLOP utilisation, memory. A part that fails or exceeds its limit has a row with
the reason, and does not stop the next. The time that a part leaves is shared among the next ones. The table comes
last, with the ratios. Models have random weights in the geometry of Qwen2.5, and all completions have the same length,
so that all sides do the same work.

The peers, CoMLRL and TRL, are optional. They run in the interpreter that --peers-python names, which has its own
versions of torch, transformers and vLLM.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from benchmarks.gpu_race.parts import FIRST_CALL, PARTS, SECOND_CALL, run_part
from benchmarks.gpu_race.race import Race
from benchmarks.gpu_race.table import table

GRACE_S = 10.0
"""Time of a part to end in order, after its limit. A part has at least this time."""

FAILED = 3
"""Exit status of a part that has added the reason of its failure."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of models, logs and rows")
    parser.add_argument("--second", action="store_true", help=f"the parts {', '.join(SECOND_CALL)}")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts")
    parser.add_argument("--budget", type=float, default=580.0, metavar="SECONDS", help="limit of all parts together")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="interpreter of CoMLRL and TRL")
    parser.add_argument("--cpu", action="store_true", help="tiny models on a CPU")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=float("inf"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    race = Race(options.out.resolve(), options.cpu, options.limit)
    if options.part:
        sys.exit(_run_here(race, options.part))
    race.folder.mkdir(parents=True, exist_ok=True)
    parts = options.only or list(SECOND_CALL if options.second else FIRST_CALL)
    end = time.monotonic() + options.budget
    for number, part in enumerate(parts):
        # The limits are shares of the remaining time, so unused time of a part goes to the next ones.
        share = PARTS[part].limit_s / sum(PARTS[later].limit_s for later in parts[number:])
        python = sys.executable if PARTS[part].peer is None else options.peers_python
        _run_in_process(race, part, python, share * (end - time.monotonic()))
    print("\n".join(table(race.rows())))


def _run_here(race: Race, part: str) -> int:
    """Run a part in this process, and return the exit status. An error is a row."""
    try:
        run_part(race, part)
    except Exception as error:
        # The border of the part's process: whatever fails in it must not stop the next part.
        traceback.print_exc()
        text = " ".join(str(error).split())
        race.add(part, "", failed=f"{type(error).__name__}: {text}"[:300])
        return FAILED
    return 0


def _run_in_process(race: Race, part: str, python: str, limit_s: float) -> None:
    """Run a part, and add a row with the reason if it fails or exceeds its limit."""
    if limit_s < GRACE_S:
        race.add(part, "", failed="no time was left: raise --budget")
        return
    print(f"{part}: at most {limit_s:.0f} s", flush=True)
    run_s = limit_s - GRACE_S / 2
    command = [python, "-m", "benchmarks.gpu_race", "--out", str(race.folder), "--part", part, "--limit", f"{run_s}"]
    if race.on_cpu:
        command.append("--cpu")
    log_path = race.folder / f"{part}.log"
    with log_path.open("w", encoding="utf-8") as log:
        try:
            # A session of its own, so that the processes that a part has started end with it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            race.add(part, "", failed=f"{python} does not start ({error.strerror}): check --peers-python")
            return
    try:
        status = process.wait(run_s)
    except subprocess.TimeoutExpired:
        race.add(part, "", failed=f"it took longer than {run_s:.0f} s")
        _end(process)
        return
    if status not in (0, FAILED):
        race.add(part, "", failed=f"it ended with status {status}: see {log_path.name}")


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


if __name__ == "__main__":
    main()
