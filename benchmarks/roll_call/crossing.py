"""The size of a step, and the measure of a run: joint samples until the reward is 90 % of the optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

TASKS = 4
"""Tasks per step."""
GROUP = 4
"""Joint actions per task."""
STEP_SAMPLES = TASKS * GROUP
OPTIMUM = 2.0
TARGET = 0.9 * OPTIMUM
WINDOW = 4
"""Steps whose mean reward is compared with the target. The reward of one step is the mean of 16 joint actions."""


def samples_to_target(rewards: Sequence[float]) -> int | None:
    """Return the joint samples up to the first step at which the mean reward of the last WINDOW steps is at least
    TARGET; None if there is no such step.

    Example:
        >>> samples_to_target([1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0])
        96
    """
    for step in range(WINDOW, len(rewards) + 1):
        if fmean(rewards[step - WINDOW : step]) >= TARGET:
            return step * STEP_SAMPLES
    return None


def geometric_mean(samples: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, samples)))
