"""Final reward of the quickstart by bound of staleness (`max_staleness`), over several seeds.

    python -m benchmarks.staleness [--seeds 5] [--staleness 0,1] [--folder staleness]

Prints the held-out reward of the last turn before and after each run, then means and standard errors. Finished runs in
the folder are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEY = "eval/turn_2/reward_mean"


def held_out(folder: Path) -> list[float]:
    """Return the rewards of all evaluations, in order."""
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []
    return [row[KEY] for row in rows if KEY in row]


def train(folder: Path, seed: int, staleness: int) -> None:
    """Train a run to its end, unless it is finished."""
    if (folder / "models" / "agent_1").is_dir() and len(held_out(folder)) >= 2:
        return
    settings = {
        "seed": seed,
        "magrpo.max_staleness": staleness,
        "output.base_dir": folder.parent,
        "output.run_name": folder.name,
        "output.resume": "auto",
    }
    command = [sys.executable, "-m", "marl_ray.train_magrpo", "--config", str(ROOT / "configs" / "quickstart.yaml")]
    overrides = [part for key, value in settings.items() for part in ("--override", f"{key}={value}")]
    with folder.with_suffix(".log").open("w", encoding="utf-8") as log:
        subprocess.run([*command, *overrides], check=True, stdout=log, stderr=log, cwd=ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--staleness", default="0,1")
    parser.add_argument("--folder", type=Path, default=Path("staleness"))
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    bounds = [int(k) for k in arguments.staleness.split(",")]
    after: dict[int, list[float]] = {k: [] for k in bounds}
    for seed in range(1, arguments.seeds + 1):
        for k in bounds:
            run = folder / f"k{k}_seed{seed}"
            train(run, seed, k)
            first, *_, last = held_out(run)
            after[k].append(last)
            print(f"seed {seed}  k = {k}  {first:.2f} -> {last:.2f}", flush=True)
    for k, rewards in after.items():
        spread = statistics.stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0
        print(f"k = {k}: {statistics.fmean(rewards):.3f} +- {spread:.3f} ({len(rewards)} seeds)")


if __name__ == "__main__":
    main()
