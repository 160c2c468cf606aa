"""One training run and the line of its results; a spawned process can import this module, but no `__main__`."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from benchmarks.learning.measures import read_lines
from benchmarks.roll_call.arms import ROLL_CALL
from benchmarks.roll_call.crossing import samples_to_target
from marl_ray.config import from_keywords


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train an arm and return the line of its results."""
    from benchmarks.in_process import train  # imports torch, which a table does without

    started = time.monotonic()
    settings = {**ROLL_CALL.common, **ROLL_CALL.arms[arm].overrides, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        settings |= {"output.base_dir": folder, "output.run_name": "run", "output.episodes_per_step": 0}
        settings["dataset.eval_split"] = None
        rows = read_lines(train(from_keywords(ROLL_CALL.config, "magrpo", {}, settings)).metrics)
    curve = [round(float(row["turn_1/reward_mean"]), 4) for row in rows]
    return {
        "arm": arm,
        "seed": seed,
        "digest": ROLL_CALL.digest(arm),
        "samples": samples_to_target(curve),
        "seconds": round(time.monotonic() - started, 1),
        "curve": curve,
    }
