"""Timing of a run: the parts of its start, and the work, waits and idle time of each step."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from marl_ray.core.concurrency import now
from marl_ray.core.ids import PolicyId
from marl_ray.telemetry.metrics import MetricRow

MIN_SHOWN_S = 0.5
"""Parts of the start that took less are not printed."""


class StartupTimer:
    """Seconds of each part of a run's start, since this process began. Parts may overlap. Not thread-safe."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {"imports": process_age_s()}
        self._begun = time.monotonic() - self.parts["imports"]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the block as part `name`; among blocks with the same name the slowest counts."""
        begun = time.monotonic()
        self.parts.setdefault(name, 0.0)
        yield
        self.parts[name] = max(self.parts[name], time.monotonic() - begun)

    @property
    def seconds(self) -> float:
        """Seconds since this process began."""
        return time.monotonic() - self._begun

    def as_json(self) -> dict[str, float]:
        """Return the seconds of all parts, and the total as `ready`."""
        return {name: round(seconds, 2) for name, seconds in {**self.parts, "ready": self.seconds}.items()}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.parts.items() if seconds >= MIN_SHOWN_S)
        return f"{self.seconds:.0f} s ({parts})"


def process_age_s() -> float:
    """Return the seconds since this process started; 0 on systems without /proc."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0
    return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


class Timeline:
    """The `time/...` metrics of each step, in seconds (docs/reference/metrics.md). For use in one event loop."""

    def __init__(self, policies: Sequence[PolicyId]) -> None:
        self._policies = policies
        self._learner_times: dict[int, dict[PolicyId, dict[str, float]]] = {}
        self._idle_before: dict[int, MetricRow] = {}
        """By step: idle time before its rollout, and the agent that caused it."""
        self._rollout_began: dict[int, float] = {}
        self._rollouts_active = 0
        self._evaluated_s = 0.0
        self._evaluated_before = dict.fromkeys(policies, 0.0)
        """Evaluation time before the current step of each learner."""
        self._last_row = self._evaluation_began = now()
        self._idle_since: float | None = now()
        self._last_to_update: int | None = None

    def start_rollout(self, step: int | None = None) -> None:
        """Record that the rollout of a batch, or of an evaluation (None), starts."""
        if step is not None:
            idle = 0.0 if self._idle_since is None else now() - self._idle_since
            self._rollout_began[step] = now()
            self._idle_before[step] = {"time/idle": idle}
            if idle and self._last_to_update is not None:
                self._idle_before[step]["time/held_up_by"] = self._last_to_update
        else:
            self._evaluation_began = now()
        self._rollouts_active += 1
        self._idle_since = None

    def finish_rollout(self, step: int | None = None) -> float:
        """Record the end of a rollout or evaluation; return its duration."""
        self._rollouts_active -= 1
        if not self._rollouts_active:
            self._idle_since = now()
        if step is None:
            seconds = now() - self._evaluation_began
            self._last_row += seconds
            self._evaluated_s += seconds
            return seconds
        return now() - self._rollout_began.pop(step)

    def start_learner_step(self, policy: PolicyId) -> None:
        """Record that a learner starts its next step, possibly with a wait."""
        self._evaluated_before[policy] = self._evaluated_s

    def finish_learner_step(self, step: int, policy: PolicyId, learn: float, wait: float, sync: float) -> None:
        """Record the times of a learner's step. Evaluations during its wait are subtracted."""
        wait = max(0.0, wait - (self._evaluated_s - self._evaluated_before[policy]))
        self._learner_times.setdefault(step, {})[policy] = {"learn": learn, "wait": wait, "sync": sync}
        self._last_to_update = policy.number

    def row(self, step: int) -> MetricRow:
        """Return the times of a step that every learner has finished, and delete them."""
        row: MetricRow = {"time/step": now() - self._last_row, **self._idle_before.pop(step, {})}
        self._last_row = now()
        learners = self._learner_times.pop(step)
        for part in ("learn", "sync"):
            row[f"time/{part}"] = max(times[part] for times in learners.values())
        return row | {f"time/{p.key}/{part}": s for p in self._policies for part, s in learners[p].items()}
