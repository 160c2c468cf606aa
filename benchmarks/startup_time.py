"""Start-up time of a run until its first rollout, by part.

    python -m benchmarks.startup_time [--config configs/quickstart.yaml] [--repeats 3] [--against ../other/checkout]

Starts runs of one step one after another; with `--against`, runs of another checkout alternate with them. The parts are
`startup_s` in the run's machine.json; some of them run concurrently. `ready` is the time from the command to the run's
line "ready after"; `first rollout` follows it. `CPU` is the CPU time of all processes of the run until it is ready, in
seconds, which depends less on other load than the wall clock does. Prints medians over the repeats.
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
    """Run one step in a new folder and return the seconds of each part. Raises RuntimeError if the run fails."""
    mark = f"{MARK}={folder}"
    command = [sys.executable, "-m", "marl_ray", "train", "magrpo", "--config", str(config), "--override"]
    command += ["magrpo.max_steps=1", "dataset.eval_split=null", f"output.base_dir={folder}", "output.run_name=run"]
    environment = os.environ | {"PYTHONPATH": str(checkout), MARK: str(folder)}
    started = time.monotonic()
    parts: dict[str, float] = {}
    output = []
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            output.append(line)
            if READY in line and not parts:
                parts = {"ready": time.monotonic() - started, "CPU": cpu_s(mark)}
        process.wait(DEADLINE_S)
    if process.returncode or not parts:
        raise RuntimeError(f"{command} failed: {''.join(output[-3:])}")
    startup_s = json.loads((folder / "run" / "machine.json").read_text(encoding="utf-8")).get("startup_s", {})
    row = json.loads((folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    startup_s.pop("ready", None)
    return {**startup_s, **parts, "first rollout": row["time/rollout"]}


def cpu_s(mark: str) -> float:
    """Return the CPU seconds so far of all processes with this environment variable."""
    total = 0.0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:  # the process has ended, or belongs to another user
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
