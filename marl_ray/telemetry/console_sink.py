"""Console output of a training run: one aligned line per step. On a terminal: a table, a progress bar, and a sampled
episode now and then."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Sequence
from time import monotonic as now

from marl_ray.core.ids import PolicyId
from marl_ray.telemetry import logs
from marl_ray.telemetry.console_table import ConsoleTable
from marl_ray.telemetry.episode_records import EpisodeRecord
from marl_ray.telemetry.episode_table import episode_table
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import Sink
from marl_ray.telemetry.terminal import columns, is_terminal

logger = logging.getLogger(__name__)

ETA_WINDOW = 20
"""Number of most recent steps from which the remaining time is estimated."""


EPISODE_EVERY = 25
"""Lines of steps after which a terminal shows an episode; the first one belongs to the first evaluation."""


MAX_EPISODE_WIDTH = 120
"""Columns of an episode on a wide terminal, so that the eye finds the other answer."""


class ConsoleSink(Sink):
    """Logs every `every`-th step, the last step and every evaluation, on standard error.

    Terminals show these lines as a table that fits their width. Pipes and the log file have whole lines.
    """

    def __init__(self, total_steps: int, done: int, policies: Sequence[PolicyId], num_turns: int, every: int) -> None:
        self.total = total_steps
        self.policies = policies
        self.num_turns = num_turns
        self.every = every
        self.ends: deque[float] = deque([now()], maxlen=ETA_WINDOW + 1)
        """End times of the most recent steps."""
        self.with_solved: bool | None = None
        """True if the environment reports `all_passed`; None before the first row."""
        self.table: ConsoleTable | None = None
        """The table of a terminal; None before the first row."""
        self._lines_until_episode = 0
        """Lines of steps before the next episode; the first evaluation shows one, too."""
        self._shows_titles = True
        """Whether titles precede the next line of the table."""
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
        if self.with_solved is None:
            self.with_solved = any(key.endswith("/all_passed") for key in row)
            self.table = ConsoleTable(self.total, self.policies, self.num_turns, self.with_solved)
            logger.info(self._legend(), extra=logs.for_terminal(""))
        assert self.table is not None, "made with the first row"
        if name:
            self._log(self._evaluation(row, name), self.table.evaluation(row, name))
            for index in range(len(self.ends)):
                self.ends[index] += float(row["time/eval"])  # which is no part of a step
            return
        self.bar.update(1)
        self.ends.append(now())
        step = int(row["step"])
        if step % self.every == 0 or step == self.total:
            left = self._time_left(step)
            self._log(self._step(row, step, left), self.table.step(row, f"{step}/{self.total}", left))
            self._lines_until_episode -= 1

    def episodes(self, step: int, kind: str, records: Sequence[EpisodeRecord]) -> None:
        """Show the first episode on a terminal, if it is time for one."""
        if self._lines_until_episode > 0 or not records or not is_terminal():
            return
        self._lines_until_episode = EPISODE_EVERY
        self._shows_titles = True
        split = "a held-out task" if kind == "eval" else "a training task"
        place = f"{split} at step {step}" if step else f"{split} before training"
        logs.show(episode_table(records[0], place, min(columns() - 1, MAX_EPISODE_WIDTH)))

    def close(self) -> None:
        self.bar.close()

    def _log(self, line: str, on_terminal: str) -> None:
        """Log a line, whose text on terminals is a line of the table."""
        if self._shows_titles and self.table is not None:
            on_terminal = f"{self.table.header()}\n{on_terminal}"
            self._shows_titles = False
        logger.info(line, extra=logs.for_terminal(on_terminal))

    def _legend(self) -> str:
        parts = ["reward: mean of each turn"]
        if self.with_solved:
            parts.append("solved: share of joint answers in the last turn")
        owners = "each agent"
        if any(len(policy.agents) > 1 for policy in self.policies):
            owners = ", ".join(map(str, self.policies))
        parts.append(f"loss: of {owners}")
        return "; ".join(parts)

    def _time_left(self, step: int) -> str:
        step_s = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        return _duration(max(0.0, step_s) * (self.total - step))

    def _step(self, row: MetricRow, step: int, left: str) -> str:
        losses = []
        for policy in self.policies:
            loss = float(row.get(f"{policy.key}/loss", 0.0))
            # The option z writes a rounded -0.0 as 0.0.
            losses.append(f"{loss:+z8.4f}")
        return (
            f"step {step:>{len(str(self.total))}}/{self.total} | reward {self._rewards(row, '')} "
            f"{self._solved(row, '')}| loss {' '.join(losses)} "
            f"| {row['rollout/tokens_per_s']:>6.0f} tok/s | {row['time/step']:5.1f} s "
            f"(roll {row['time/rollout']:.1f} learn {row['time/learn']:.1f} sync {row['time/sync']:.2f}) "
            f"| left {left}"
        )

    def _evaluation(self, row: MetricRow, name: str) -> str:
        rewards = self._rewards(row, "eval/")
        solved = self._solved(row, "eval/")
        return f"eval {name:>12} | reward {rewards} {solved}| {row['time/eval']:.1f} s"

    def _rewards(self, row: MetricRow, prefix: str) -> str:
        numbers = []
        for turn in range(1, self.num_turns + 1):
            key = f"{prefix}turn_{turn}/reward_mean"
            numbers.append(f"{row[key]:z5.2f}" if key in row else "    -")
        return " ".join(numbers)

    def _solved(self, row: MetricRow, prefix: str) -> str:
        """Return the column of the last turn's `all_passed`; empty if the environment does not report it."""
        if not self.with_solved:
            return ""
        key = f"{prefix}turn_{self.num_turns}/all_passed"
        share = f"{row[key]:4.0%}" if key in row else "   -"
        return f"| solved {share} "


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"
