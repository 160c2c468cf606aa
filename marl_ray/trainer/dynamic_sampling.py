"""Dynamic sampling: which prompt may be sampled next, and which batch an episode belongs to. Pure decisions.

Prompt samples are numbered through the whole run: sample t is the t-th task of the seeded permutations. A batch takes
samples in their order, starting behind the previous batch, until `size` samples are informative or `limit` samples are
used: the dynamic sampling of DAPO (Yu et al., 2025) with a limit. Informative samples are learned from, the others are
skipped. The samples of a batch therefore do not depend on the order in which episodes finish.

The batch of a sample is not known when the sample starts, but the latest possible batch is: the batch that results if
all earlier unfinished samples turn out to be informative, because batches then end soonest. A sample may start when that
batch is open (`SchedulingGate.open_until`). No token is then staler than the bound, and every started sample belongs to
a batch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """The batch of a sample. `informative`: learned from, else skipped. `last`: the sample completes the batch."""

    sample: int
    batch: int
    informative: bool
    last: bool


class DynamicSampler:
    """The sampler of a run of `total` batches, from batch `batch`, whose first sample is `sample`.

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
        self.size, self.limit, self.total = size, limit, total
        self.batch = batch
        """The batch that is being filled; all earlier batches are complete."""
        self.next = sample
        """The sample that starts next."""
        self._unassigned = sample
        """The first sample without a batch."""
        self._finished: dict[int, bool] = {}
        """Finished samples behind an unfinished one, and whether each is informative."""
        self._used = self._informative = 0
        """Samples and informative samples of `batch` so far."""

    @property
    def latest_batch(self) -> int:
        """The latest batch that the next sample can belong to."""
        batch, used, informative = self.batch, self._used, self._informative
        for sample in range(self._unassigned, self.next):
            used, informative = used + 1, informative + self._finished.get(sample, True)
            if self._is_full(used, informative):
                batch, used, informative = batch + 1, 0, 0
        return batch

    def is_complete(self, batch: int) -> bool:
        """Return whether all samples of a batch are known."""
        return batch < self.batch

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
        while self._unassigned in self._finished:
            assignments.append(self._assign(self._unassigned, self._finished.pop(self._unassigned)))
            self._unassigned += 1
        return assignments

    def _assign(self, sample: int, informative: bool) -> Assignment:
        batch = self.batch
        self._used, self._informative = self._used + 1, self._informative + informative
        last = self._is_full(self._used, self._informative)
        if last:
            self.batch, self._used, self._informative = batch + 1, 0, 0
        return Assignment(sample, batch, informative, last)

    def _is_full(self, used: int, informative: int) -> bool:
        return informative == self.size or used == self.limit
