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
from marl_ray.telemetry.sinks import Span

MIN_SHOWN_S = 0.5
"""Parts of the start that took less are not printed."""
MIN_SPAN_S = 1e-5
"""Spans of the timeline that took less are not stored."""


class StartupTimer:
    """Seconds of each part of a run's start, since this process began, or since `imports_s` seconds ago in a process
    that does other work too. Parts may overlap. Not thread-safe."""

    def __init__(self, imports_s: float | None = None) -> None:
        self.parts: dict[str, float] = {"imports": process_age_s() if imports_s is None else imports_s}
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
        parts = {**self.parts, "ready": self.seconds}
        return {name: round(seconds, 2) for name, seconds in parts.items()}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.parts.items() if seconds >= MIN_SHOWN_S)
        return f"{self.seconds:.0f} s ({parts})"


def process_age_s() -> float:
    """Return the seconds since this process started; 0 on systems without /proc."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    except OSError:
        return 0.0
    # Field 22 of proc(5), the start in clock ticks since the boot: number 19 behind the name in brackets.
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, uptime - started)


class Timeline:
    """The `time/...` metrics of each step, in seconds (docs/reference/metrics.md), and the spans of the timeline.

    The spans of one learner follow each other without gaps and add up to the duration of a step. Spans of several
    rollouts may overlap. For use in one event loop.
    """

    def __init__(self, policies: Sequence[PolicyId]) -> None:
        self._policies = policies
        self._learner_times: dict[int, dict[PolicyId, dict[str, float]]] = {}
        self._idle_s: dict[int | None, float] = {}
        """Idle time since the last row, by the agent whose weights came last; None before the first update."""
        self._rollout_began: dict[int, float] = {}
        self._rollouts_active = 0
        self._batches_left = True
        self._evaluated_s = 0.0
        self._evaluated_before = dict.fromkeys(policies, 0.0)
        """Evaluation time before the current step of each learner."""
        self._last_row = self._evaluation_began = self._row_began = now()
        self._epoch = time.time() - now()
        """Offset from the event loop's clock to seconds since the epoch."""
        self._spans: list[Span] = []
        self._learner_free = dict.fromkeys(policies, now())
        """End of the last span of each learner."""
        self._idle_since: float | None = now()
        self._last_to_update: int | None = None

    def start_rollout(self, step: int | None = None) -> None:
        """Record that the rollout of a batch, or of an evaluation (None), starts."""
        self._count_idle_time()
        self._idle_since = None
        self._rollouts_active += 1
        if step is None:
            self._evaluation_began = now()
        else:
            self._rollout_began[step] = now()

    def finish_rollout(self, step: int | None = None, is_last: bool = False) -> float:
        """Record the end of a rollout or evaluation; return its duration. After the run's last batch, engines wait for
        nothing: that time is not idle time."""
        self._rollouts_active -= 1
        self._batches_left &= not is_last
        if not self._rollouts_active and self._batches_left:
            self._idle_since = now()
        if step is None:
            self._span("rollouts", "evaluation", -1, self._evaluation_began, now())
            seconds = now() - self._evaluation_began
            self._last_row += seconds
            self._evaluated_s += seconds
            return seconds
        began = self._rollout_began.pop(step)
        self._span("rollouts", "rollout", step, began, now())
        return now() - began

    def start_learner_step(self, policy: PolicyId) -> None:
        """Record that a learner starts its next step, possibly with a wait."""
        self._evaluated_before[policy] = self._evaluated_s

    def finish_learner_step(
        self, step: int, policy: PolicyId, learned: float, waits: Sequence[tuple[float, float]]
    ) -> None:
        """Record a learner's step that ends now. It ended to learn at `learned`, and had `waits` before.

        Evaluations during its waits are subtracted from its metric `wait`.
        """
        started = self._learner_free[policy]
        ended = now()
        waited = sum(end - begin for begin, end in waits)
        wait = max(0.0, waited - (self._evaluated_s - self._evaluated_before[policy]))
        times = {"learn": learned - started - waited, "wait": wait, "sync": ended - learned}
        self._learner_times.setdefault(step, {})[policy] = times
        self._last_to_update = policy.first_agent
        begin = started
        for wait_begin, wait_end in waits:
            self._span(policy.key, "learn", step, begin, wait_begin)
            self._span(policy.key, "wait", step, wait_begin, wait_end)
            begin = wait_end
        self._span(policy.key, "learn", step, begin, learned)
        self._span(policy.key, "sync", step, learned, ended)
        self._learner_free[policy] = ended

    def finish_save(self, step: int, policy: PolicyId) -> None:
        """Record that a learner has copied its state for a checkpoint, or written its model, since its last span."""
        self._span(policy.key, "save", step, self._learner_free[policy], now())
        self._learner_free[policy] = now()

    def finish_write(self, step: int, policy: PolicyId, begun: float) -> None:
        """Record that a learner's part of a checkpoint is on disk, whose write began at `begun`."""
        self._span("checkpoints", f"write {policy.key}", step, begun, now())

    def take_spans(self) -> list[Span]:
        """Return the spans since the previous call, and delete them."""
        spans = self._spans
        self._spans = []
        return spans

    def _span(self, track: str, name: str, step: int, begin: float, end: float) -> None:
        """Record a span of step `step` (from 0; -1: none), without spans below a resolution of 10 us."""
        if end - begin > MIN_SPAN_S:
            self._spans.append((track, name, step + 1, round(begin + self._epoch, 6), round(end + self._epoch, 6)))

    def row(self, step: int) -> MetricRow:
        """Return the times of a step that every learner has finished, and delete them."""
        row: MetricRow = {"time/step": now() - self._last_row, **self._take_idle_time()}
        self._span("steps", "step", step, self._row_began, now())
        self._last_row = self._row_began = now()
        learners = self._learner_times.pop(step)
        for part in ("learn", "sync"):
            row[f"time/{part}"] = max(times[part] for times in learners.values())
        for policy in self._policies:
            for part, seconds in learners[policy].items():
                row[f"time/{policy.key}/{part}"] = seconds
        return row

    def _take_idle_time(self) -> MetricRow:
        """Return the idle time since the last row, which is a part of the time since then, and the agent that caused
        most of it."""
        self._count_idle_time()
        row: MetricRow = {"time/idle": sum(self._idle_s.values())}
        longest = 0.0
        for agent, seconds in self._idle_s.items():
            if agent is not None and seconds > longest:
                row["time/held_up_by"] = agent
                longest = seconds
        self._idle_s = {}
        return row

    def _count_idle_time(self) -> None:
        """Add the idle time until now to that of the last agent that updated its weights."""
        if self._idle_since is None or now() == self._idle_since:
            return
        agent = self._last_to_update
        self._idle_s[agent] = self._idle_s.get(agent, 0.0) + now() - self._idle_since
        self._idle_since = now()
