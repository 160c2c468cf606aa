"""One training run and the line of its results; a spawned process can import this module, but no `__main__`."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.roll_call.arms import ROLL_CALL
from benchmarks.roll_call.crossing import samples_to_target


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train an arm and return the line of its results."""
    from benchmarks.roll_call.in_process import train  # imports torch, which a table does without

    started = time.monotonic()
    settings = {**ROLL_CALL.common, **ROLL_CALL.arms[arm].overrides, "seed": seed}
    rows = train(ROLL_CALL.config, settings)
    curve = [round(float(row["turn_1/reward_mean"]), 4) for row in rows]
    return {
        "arm": arm,
        "seed": seed,
        "digest": ROLL_CALL.digest(arm),
        "samples": samples_to_target(curve),
        "seconds": round(time.monotonic() - started, 1),
        "curve": curve,
    }
