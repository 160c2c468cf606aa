"""Console output of a training run: one aligned line per step, and a progress bar on a terminal."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Sequence
from time import monotonic as now

from marl_ray.core.ids import PolicyId
from marl_ray.telemetry import logs
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import Sink

logger = logging.getLogger(__name__)

ETA_WINDOW = 20
"""Number of most recent steps from which the remaining time is estimated."""


class ConsoleSink(Sink):
    """Logs every `every`-th step, the last step and every evaluation, on standard error."""

    def __init__(self, total_steps: int, done: int, policies: Sequence[PolicyId], num_turns: int, every: int) -> None:
        self.total = total_steps
        self.policies = policies
        self.num_turns = num_turns
        self.every = every
        self.ends: deque[float] = deque([now()], maxlen=ETA_WINDOW + 1)
        """End times of the most recent steps."""
        self.with_tests: bool | None = None
        """True if the environment reports `all_passed`; None before the first row."""
        self.bar = logs.tqdm(
            total=total_steps,
            initial=done,
            unit="step",
            file=sys.stderr,  # a widget in a notebook
            disable=logs.progress_bar_disabled(),
            dynamic_ncols=True,
            leave=False,
        )

    def row(self, row: MetricRow, name: str) -> None:
        """Log the row's line; the first one follows a line that explains the columns."""
        if self.with_tests is None:
            self.with_tests = any(key.endswith("/all_passed") for key in row)
            columns = ["reward: mean of each turn"]
            if self.with_tests:
                columns.append("pass: share with all tests passed in the last turn")
            owners = "each agent"
            if any(len(policy.agents) > 1 for policy in self.policies):
                owners = ", ".join(map(str, self.policies))
            columns.append(f"loss: of {owners}")
            logger.info("; ".join(columns))
        if name:
            logger.info(self._evaluation(row, name))
            return
        self.bar.update(1)
        self.ends.append(now())
        step = int(row["step"])
        if step % self.every == 0 or step == self.total:
            logger.info(self._step(row, step))

    def close(self) -> None:
        self.bar.close()

    def _step(self, row: MetricRow, step: int) -> str:
        losses = []
        for policy in self.policies:
            loss = float(row.get(f"{policy.key}/loss", 0.0))
            # Adding 0.0 turns a rounded -0.0 into 0.0.
            losses.append(f"{round(loss, 4) + 0.0:+8.4f}")
        step_s = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        left = step_s * (self.total - step)
        return (
            f"step {step:>{len(str(self.total))}}/{self.total} | reward {self._rewards(row, '')} "
            f"{self._passed(row, '', 'pass')}| loss {' '.join(losses)} "
            f"| {row['rollout/tokens_per_s']:>6.0f} tok/s | {row['time/step']:5.1f} s "
            f"(roll {row['time/rollout']:.1f} learn {row['time/learn']:.1f} sync {row['time/sync']:.2f}) "
            f"| left {_duration(left)}"
        )

    def _evaluation(self, row: MetricRow, name: str) -> str:
        rewards = self._rewards(row, "eval/")
        passed = self._passed(row, "eval/", "all tests passed")
        return f"eval {name:>12} | reward {rewards} {passed}| {row['time/eval']:.1f} s"

    def _rewards(self, row: MetricRow, prefix: str) -> str:
        numbers = []
        for turn in range(1, self.num_turns + 1):
            key = f"{prefix}turn_{turn}/reward_mean"
            numbers.append(f"{row[key]:5.2f}" if key in row else "    -")
        return " ".join(numbers)

    def _passed(self, row: MetricRow, prefix: str, title: str) -> str:
        """Return the column of the last turn's `all_passed`; empty if the environment does not report it."""
        if not self.with_tests:
            return ""
        key = f"{prefix}turn_{self.num_turns}/all_passed"
        share = f"{row[key]:4.0%}" if key in row else "   -"
        return f"| {title} {share} "


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"
