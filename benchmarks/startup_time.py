"""Seconds until a run is ready for its first rollout, by part.

    python -m benchmarks.startup_time [--config configs/quickstart.yaml] [--repeats 3] [--against ../other/checkout]

Starts runs of one step, one after another; with `--against` those of another checkout take turns with them. Parts are
what a run itself says (`startup_s` in its machine.json): some go on side by side. `ready` is the time from the command
to the run's line that says so; `first rollout` follows it; `CPU` is what all processes of the run had computed by then,
in seconds of one core, which other work on the machine changes less than it does the wall clock. Medians over repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
MARK = "MARL_RAY_BENCHMARK"
READY = "ready after "
DEADLINE_S = 600


def start(checkout: Path, config: Path, folder: Path) -> dict[str, float]:
    """One run of one step in a new folder: its parts. Raises RuntimeError where it does not get that far."""
    mark = f"{MARK}={folder}"
    command = [sys.executable, "-m", "marl_ray", "train", "magrpo", "--config", str(config), "--override"]
    command += ["magrpo.max_steps=1", "dataset.eval_split=null", f"output.base_dir={folder}", "output.run_name=run"]
    environment = os.environ | {"PYTHONPATH": str(checkout), MARK: str(folder)}
    begun = time.monotonic()
    parts: dict[str, float] = {}
    said = []
    with subprocess.Popen(command, cwd=checkout, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if READY in line and not parts:
                parts = {"ready": time.monotonic() - begun, "CPU": cpu_s(mark)}
        process.wait(DEADLINE_S)
    if process.returncode or not parts:
        raise RuntimeError(f"{command} failed: {''.join(said[-3:])}")
    told = json.loads((folder / "run" / "machine.json").read_text()).get("startup_s", {})
    row = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[0])
    told.pop("ready", None)
    return {**told, **parts, "first rollout": row["time/rollout"]}


def cpu_s(mark: str) -> float:
    """Of all processes with this variable, until now."""
    total = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # it has ended meanwhile, or is somebody else's
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE / "configs" / "quickstart.yaml")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    checkouts = {"here": HERE} | ({"there": arguments.against.resolve()} if arguments.against else {})
    found: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for repeat in range(arguments.repeats):
        for name, checkout in checkouts.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(start(checkout, arguments.config.resolve(), Path(folder)))
            times = found[name][-1]
            print(f"{name} {repeat + 1}: ready {times['ready']:.1f} s, CPU {times['CPU']:.1f} s", flush=True)
    medians = {
        name: {part: statistics.median(run[part] for run in runs) for part in runs[0]} for name, runs in found.items()
    }
    print(f"{'':16}" + "".join(f"{name:>9}" for name in checkouts))
    for part in medians["here"]:
        cells = [f"{times[part]:9.1f}" if part in times else f"{'':9}" for times in medians.values()]
        print(f"{part:16}" + "".join(cells))


if __name__ == "__main__":
    main()
