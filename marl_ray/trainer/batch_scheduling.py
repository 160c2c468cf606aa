"""Decisions about which batch and which sample may start. Pure: no actor, no clock, no waiting.

A run is a sequence of batches b = 0, 1, ... Every agent makes one update per batch, in order; version v of an agent is
its weights after v updates. With staleness bound k, batch b may start when every agent has version b - k or a newer
version. Weights only become newer, so no token of batch b has a version below b - k; and because version b + 1 needs
batch b, no token of batch b has a version above b. With k = 0 all agents are in step.

The evaluation "at step e" uses version e of every agent. No agent moves on to version e + 1 before the evaluation is
over, and the gate counts version e as reached only then.

    event                                 decision
    weights_updated(agent, version)       next_batch: the batch that may start now
    logged(batch)                         may_update(agent): whether the agent may learn from its next batch
    evaluated(step)                       evaluation: the step whose evaluation is due
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class SchedulingGate:
    """The schedule of one run of `agents` agents with bound `staleness`, from step `first` to step `total`.

    `evaluations`: the steps after which an evaluation is due, in any order. `logged`: the number of batches that are
    in the batch log already, and their updates are repeated; these batches are never started.

    Example:
        >>> gate = SchedulingGate(agents=2, staleness=1, first=0, total=3)
        >>> [gate.start(), gate.start(), gate.next_batch]
        [0, 1, None]
    """

    def __init__(
        self, agents: int, staleness: int, first: int, total: int, evaluations: Iterable[int] = (), logged: int = 0
    ) -> None:
        self.staleness = staleness
        self.total = total
        self.versions = [first] * agents
        """Weight version per agent."""
        self.started = max(first, logged)
        """Number of batches that have started."""
        self.in_log = self.started
        """Number of batches that are complete and in the log."""
        self._evaluations = sorted(step for step in set(evaluations) if first <= step <= total)
        """Steps of the evaluations that are not over."""

    @property
    def open_until(self) -> int:
        """The last batch whose episodes may start now."""
        reached = min(self.versions)
        if self._evaluations:
            # Generators that are evaluated serve no episodes: version e counts only after its evaluation.
            reached = min(reached, self._evaluations[0] - 1)
        return reached + self.staleness

    @property
    def next_batch(self) -> int | None:
        """The batch that may start now, if any."""
        if self.started < self.total and self.started <= self.open_until:
            return self.started
        return None

    def start(self) -> int:
        """Start `next_batch` and return its number. Raises ValueError if no batch may start."""
        if self.next_batch is None:
            raise ValueError(f"batch {self.started} may not start at versions {self.versions}")
        self.started += 1
        return self.started - 1

    def may_update(self, agent: int) -> bool:
        """Return whether the agent's next batch is in the log and no evaluation still needs the agent's version."""
        version = self.versions[agent]
        needs_version = bool(self._evaluations) and self._evaluations[0] <= version
        return version < self.in_log and not needs_version

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


@dataclass(frozen=True, slots=True)
class Assignment:
    """The batch of a sample. `informative`: learned from, else skipped. `last`: the sample completes the batch."""

    sample: int
    batch: int
    informative: bool
    last: bool


class DynamicSampler:
    """The sampler of a run of `total` batches, from batch `batch`, whose first sample is `sample`. Pure like the gate.

    Samples are numbered through the whole run: sample t is the t-th task of the seeded permutations. A batch takes
    samples in their order, starting behind the previous batch, until `size` samples are informative or `limit` samples
    are used: the dynamic sampling of DAPO (Yu et al., 2025) with a limit. Informative samples are learned from, the
    others are skipped. The samples of a batch therefore do not depend on the order in which episodes finish.

    The batch of a sample is not known when the sample starts, but the latest possible batch is: the batch that results
    if all earlier unfinished samples turn out to be informative, because batches then end soonest. A sample may start
    when that batch is open (`SchedulingGate.open_until`). No token is then staler than the bound, and every started
    sample belongs to a batch.

    Example:
        >>> sampler = DynamicSampler(size=2, limit=4, batch=0, sample=0, total=9)
        >>> [sampler.start() for _ in range(2)], sampler.latest_batch
        ([0, 1], 1)
        >>> sampler.finished(1, informative=True), sampler.finished(0, informative=False)[-1], sampler.latest_batch
        ([], Assignment(sample=1, batch=0, informative=True, last=False), 0)
    """

    def __init__(self, size: int, limit: int, batch: int, sample: int, total: int) -> None:
        if not 1 <= size <= limit:
            raise ValueError(f"a batch of {size} informative samples cannot be found among {limit}")
        self.size = size
        self.limit = limit
        self.total = total
        self.batch = batch
        """The batch that is being filled; all earlier batches are complete."""
        self.next = sample
        """The sample that starts next."""
        self._unassigned = sample
        """The first sample without a batch."""
        self._finished: dict[int, bool] = {}
        """Finished samples behind an unfinished one, and whether each is informative."""
        self._used = 0
        """Samples of `batch` so far."""
        self._informative = 0
        """Informative samples of `batch` so far."""

    @property
    def latest_batch(self) -> int:
        """The latest batch that the next sample can belong to."""
        batch = self.batch
        used = self._used
        informative = self._informative
        for sample in range(self._unassigned, self.next):
            used += 1
            informative += self._finished.get(sample, True)  # a batch of informative samples ends soonest
            if self._is_full(used, informative):
                batch += 1
                used = 0
                informative = 0
        return batch

    def may_start(self, open_until: int) -> bool:
        """Return whether the next sample may start if batches up to `open_until` are open."""
        return self.latest_batch <= min(open_until, self.total - 1)

    def start(self) -> int:
        """Start the next sample and return its number."""
        self.next += 1
        return self.next - 1

    def finished(self, sample: int, informative: bool) -> list[Assignment]:
        """Return the samples whose batch is known now, in order. Raises ValueError for a sample that is not running."""
        if not self._unassigned <= sample < self.next or sample in self._finished:
            raise ValueError(f"sample {sample} is not running: {self._unassigned} to {self.next - 1} are")
        self._finished[sample] = informative
        assignments = []
        # Samples are assigned in their order, so a sample waits for the samples before it.
        while self._unassigned in self._finished:
            assignments.append(self._assign_next())
        return assignments

    def _assign_next(self) -> Assignment:
        sample = self._unassigned
        batch = self.batch
        informative = self._finished.pop(sample)
        self._unassigned += 1
        self._used += 1
        self._informative += informative
        last = self._is_full(self._used, self._informative)
        if last:
            self.batch += 1
            self._used = 0
            self._informative = 0
        return Assignment(sample, batch, informative, last)

    def _is_full(self, used: int, informative: int) -> bool:
        return informative == self.size or used == self.limit
