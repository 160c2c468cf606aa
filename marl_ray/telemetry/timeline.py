"""Who worked and who waited, step by step: where the time of a run goes, and who held up whom.

time/rollout          from the start of the batch until it was complete
time/idle             how long the engines had nothing to do before it, because the gate was closed
time/held_up_by       the agent whose weights opened the gate, where there was such a wait; of several that share
                      them the first
time/agent_i/learn    computing the update; policy_i of a policy that several agents share
time/agent_i/wait     its learner's waits, for groups and for the whole batch, but for evaluations
time/agent_i/sync     publishing
time/learn, time/sync the slowest policy's
time/step             from the step before, but for evaluations in between
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.core.concurrency import now
from marl_ray.core.ids import PolicyId
from marl_ray.telemetry.metrics import MetricRow


class Timeline:
    """Of one run of these policies; seconds everywhere. Made and used in the run's event loop."""

    def __init__(self, policies: Sequence[PolicyId]) -> None:
        self._learners: dict[int, dict[PolicyId, dict[str, float]]] = {}
        self._policies = policies
        self._before: dict[int, MetricRow] = {}
        self._begun: dict[int, float] = {}
        self._playing = 0
        self._evaluated_s = 0.0
        self._evaluated_before = dict.fromkeys(policies, 0.0)
        self._recorded = self._evaluation = now()
        self._idle_since: float | None = now()
        self._published_last: int | None = None

    def start_rollout(self, step: int | None = None) -> None:
        """The engines get to work, on a batch or (None) on an evaluation."""
        if step is not None:
            idle = 0.0 if self._idle_since is None else now() - self._idle_since
            self._begun[step] = now()
            self._before[step] = {"time/idle": idle}
            if idle and self._published_last is not None:
                self._before[step]["time/held_up_by"] = self._published_last
        else:
            self._evaluation = now()
        self._playing += 1
        self._idle_since = None

    def finish_rollout(self, step: int | None = None) -> float:
        """They are done with it. Returns its own time."""
        self._playing -= 1
        if not self._playing:
            self._idle_since = now()
        if step is None:
            seconds = now() - self._evaluation
            self._recorded += seconds
            self._evaluated_s += seconds
            return seconds
        return now() - self._begun.pop(step)

    def start_learner_step(self, policy: PolicyId) -> None:
        """A learner begins its next step, which may be with a wait."""
        self._evaluated_before[policy] = self._evaluated_s

    def finish_learner_step(self, step: int, policy: PolicyId, learn: float, wait: float, sync: float) -> None:
        """It has done it. Evaluations are no part of what it waited."""
        wait = max(0.0, wait - (self._evaluated_s - self._evaluated_before[policy]))
        self._learners.setdefault(step, {})[policy] = {"learn": learn, "wait": wait, "sync": sync}
        self._published_last = policy.number

    def row(self, step: int) -> MetricRow:
        """All of a step that every learner has done; it is forgotten."""
        row: MetricRow = {"time/step": now() - self._recorded, **self._before.pop(step, {})}
        self._recorded = now()
        learners = self._learners.pop(step)
        for part in ("learn", "sync"):
            row[f"time/{part}"] = max(times[part] for times in learners.values())
        return row | {f"time/{p.key}/{part}": s for p in self._policies for part, s in learners[p].items()}
