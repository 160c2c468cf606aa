"""Decisions about which batch may start, be learned from or be evaluated. Pure: no actor, no clock, no waiting.

A run is a sequence of batches b = 0, 1, ... Every agent makes one update per batch, in order; version v of an agent is
its weights after v updates. With staleness bound k, batch b may start when every agent has version b - k or a newer one.
Weights only become newer, so no token of batch b has a version below b - k; and because version b + 1 needs batch b, no
token of batch b has a version above b. With k = 0 all agents are in step.

The evaluation "at step e" uses version e of every agent. No agent moves on to version e + 1 before the evaluation is
over, and the gate counts version e as reached only then.

    event                                 decision
    weights_updated(agent, version)       next_batch: the batch that may start now
    logged(batch)                         may_update(agent): whether the agent may learn from its next batch
    evaluated(step)                       evaluation: the step whose evaluation is due
"""

from __future__ import annotations

from collections.abc import Iterable


class SchedulingGate:
    """The schedule of one run of `agents` agents with bound `staleness`, from step `first` to step `total`.

    `evaluations`: the steps after which an evaluation is due, in any order. `logged`: the number of batches that are
    in the batch log already and will be learned from again; these batches are never started.

    Example:
        >>> gate = SchedulingGate(agents=2, staleness=1, first=0, total=3)
        >>> [gate.start(), gate.start(), gate.next_batch]
        [0, 1, None]
    """

    def __init__(
        self,
        agents: int,
        staleness: int,
        first: int,
        total: int,
        evaluations: Iterable[int] = (),
        logged: int | None = None,
    ) -> None:
        self.staleness = staleness
        self.total = total
        self.versions = [first] * agents
        """Weight version per agent."""
        self.started = self.in_log = max(first, logged if logged is not None else first)
        """Number of batches that have started, and that are complete and in the log."""
        self._evaluations = sorted(step for step in set(evaluations) if first <= step <= total)

    @property
    def open_until(self) -> int:
        """The last batch whose episodes may start now."""
        oldest = min([min(self.versions), *(step - 1 for step in self._evaluations[:1])])
        return oldest + self.staleness

    @property
    def next_batch(self) -> int | None:
        """The batch that may start now, if any."""
        return self.started if self.started < self.total and self.started <= self.open_until else None

    def start(self) -> int:
        """Start `next_batch` and return its number. Raises ValueError if no batch may start."""
        batch = self.next_batch
        if batch is None:
            raise ValueError(f"batch {self.started} may not start at versions {self.versions}")
        self.started += 1
        return batch

    def may_update(self, agent: int) -> bool:
        """Return whether the agent's next batch is in the log and no evaluation still needs the agent's version."""
        version = self.versions[agent]
        return version < self.in_log and not (self._evaluations and self._evaluations[0] <= version)

    @property
    def evaluation(self) -> int | None:
        """The step whose evaluation is due: all agents have exactly its version."""
        if self._evaluations and set(self.versions) == {self._evaluations[0]}:
            return self._evaluations[0]
        return None

    def logged(self, batch: int) -> None:
        """Record that `batch` is complete and in the log. Raises ValueError out of order."""
        if batch != self.in_log or batch >= self.started:
            raise ValueError(f"batch {batch} was logged instead of batch {self.in_log}")
        self.in_log += 1

    def weights_updated(self, agent: int, version: int) -> None:
        """Record that the agent has reached `version` and that its generators serve it.

        Raises ValueError if `version` is not the next one or the agent may not update.
        """
        if version != self.versions[agent] + 1 or not self.may_update(agent):
            raise ValueError(f"agent {agent} cannot go from version {self.versions[agent]} to {version} now")
        self.versions[agent] = version

    def evaluated(self, step: int) -> None:
        """Record that the evaluation at `step` is over. Raises ValueError if it was not due."""
        if self.evaluation != step:
            raise ValueError(f"evaluation at step {step} was not due")
        self._evaluations.pop(0)
