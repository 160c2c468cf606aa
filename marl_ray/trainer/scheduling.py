"""What may start, be learned from and be evaluated: decisions from numbers. No actor, no clock, no waiting.

A run is a sequence of batches b = 0, 1, ... Every agent makes one update of each, in order; version v of an agent is
what it has after v updates. Batch b may start when every agent has published version b - k or a newer one, k being the
bound of staleness. Weights only become newer, so no token of batch b is of a version below b - k; and as batch b itself
is needed for version b + 1, none is of one above b. With k = 0 the batches of all agents are in step.

An evaluation "at step e" plays with every agent's version e. Until it is over nobody has version e + 1, and for the
gate version e counts as published only then.

    fact                                  decision
    published(agent, version)             next_batch: which batch may start now
    logged(batch)                         may_update(agent): whether it may take its next batch
    evaluated(step)                       evaluation: the step whose evaluation is to be played now
"""

from __future__ import annotations

from collections.abc import Iterable


class SchedulingGate:
    """One run of `agents` agents with bound `staleness`, from step `first` to step `total`.

    `evaluations` are the steps after which there is one, in any order; `logged` says how many batches exist already
    that are to be learned from again: none of them is started.

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
        """What each agent has published."""
        self.started = self.in_log = max(first, logged if logged is not None else first)
        """Batches that were started, and that are complete and in the log."""
        self._evaluations = sorted(step for step in set(evaluations) if first <= step <= total)

    @property
    def open_until(self) -> int:
        """The latest batch whose episodes may begin now."""
        oldest = min([min(self.versions), *(step - 1 for step in self._evaluations[:1])])
        return oldest + self.staleness

    @property
    def next_batch(self) -> int | None:
        """The batch that may start now."""
        return self.started if self.started < self.total and self.started <= self.open_until else None

    def start(self) -> int:
        """The batch that may start now is started. Raises ValueError where there is none."""
        batch = self.next_batch
        if batch is None:
            raise ValueError(f"batch {self.started} may not start at versions {self.versions}")
        self.started += 1
        return batch

    def may_update(self, agent: int) -> bool:
        """Whether the agent may make its next update: its batch is in the log, and no evaluation needs its version."""
        version = self.versions[agent]
        return version < self.in_log and not (self._evaluations and self._evaluations[0] <= version)

    @property
    def evaluation(self) -> int | None:
        """The step whose evaluation is to be played now: all agents have published exactly its version."""
        if self._evaluations and set(self.versions) == {self._evaluations[0]}:
            return self._evaluations[0]
        return None

    def logged(self, batch: int) -> None:
        """Batch number `batch` is complete and in the log. Raises ValueError out of order."""
        if batch != self.in_log or batch >= self.started:
            raise ValueError(f"batch {batch} is in the log, where batch {self.in_log} should be next")
        self.in_log += 1

    def published(self, agent: int, version: int) -> None:
        """The agent has made its update number `version`, and what is played with that finds it served. Raises
        ValueError unless it is the next one, and may be."""
        if version != self.versions[agent] + 1 or not self.may_update(agent):
            raise ValueError(f"agent {agent} published version {version} after {self.versions[agent]}")
        self.versions[agent] = version

    def evaluated(self, step: int) -> None:
        """The evaluation is over. Raises ValueError for one that was not due."""
        if self.evaluation != step:
            raise ValueError(f"evaluation at step {step} was not due")
        self._evaluations.pop(0)
