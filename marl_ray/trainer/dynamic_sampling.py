"""Which draw may start and which batch it is in, where batches are of draws that teach: decisions from numbers.

Draws are numbered through the whole run: draw t is the t-th task of the seeded permutations. A batch takes draws in
their order, beginning behind the batch before, until `size` of them are informative, or `most` are used up: DAPO's
dynamic sampling (Yu et al., 2025), but for the bound. The informative ones are learned from, the others are skipped. So
which draws a batch has does not depend on which were played first.

Which batch a draw is in is not known when it starts, but how late a one it can be in: it is in none later than if all
draws before it that are being played turned out informative, since batches then end soonest. It may start when that
batch is open (`SchedulingGate.open_until`). So no token is staler than the bound, and no draw is started in vain: whatever
the others turn out to be, it is in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """A draw whose batch is known. `informative`: it is learned from, else skipped; `last`: it ends its batch."""

    draw: int
    batch: int
    informative: bool
    last: bool


class DynamicSampler:
    """Of one run of `total` batches, from batch `batch`, whose first draw is `draw`.

    Example:
        >>> draws = DynamicSampler(size=2, most=4, batch=0, draw=0, total=9)
        >>> [draws.start() for _ in range(2)], draws.latest_batch
        ([0, 1], 1)
        >>> draws.played(1, informative=True), draws.played(0, informative=False)[-1], draws.latest_batch
        ([], Assignment(draw=1, batch=0, informative=True, last=False), 0)
    """

    def __init__(self, size: int, most: int, batch: int, draw: int, total: int) -> None:
        if not 1 <= size <= most:
            raise ValueError(f"a batch of {size} draws cannot be found among {most}")
        self.size, self.most, self.total = size, most, total
        self.batch = batch
        """What is being filled; all before are complete."""
        self.next = draw
        """The draw that starts next."""
        self._unplaced = draw
        """All before it are in a batch."""
        self._known: dict[int, bool] = {}
        """Draws that were played while one before them was not."""
        self._used = self._found = 0
        """Of the batch that is being filled: its draws by now, and the informative ones."""

    @property
    def latest_batch(self) -> int:
        """The latest batch that the next draw can turn out to be in."""
        batch, used, found = self.batch, self._used, self._found
        for draw in range(self._unplaced, self.next):
            used, found = used + 1, found + self._known.get(draw, True)
            if self._is_full(used, found):
                batch, used, found = batch + 1, 0, 0
        return batch

    def is_complete(self, batch: int) -> bool:
        """Whether all draws of a batch are known."""
        return batch < self.batch

    def may_start(self, open_until: int) -> bool:
        """Whether the next draw may, where batches up to `open_until` are open."""
        return self.latest_batch <= min(open_until, self.total - 1)

    def start(self) -> int:
        """The next draw is started."""
        self.next += 1
        return self.next - 1

    def played(self, draw: int, informative: bool) -> list[Assignment]:
        """The draws whose batch is known by this, in their order. Raises ValueError for one that is not in play."""
        if not self._unplaced <= draw < self.next or draw in self._known:
            raise ValueError(f"draw {draw} is not in play: those are from {self._unplaced} to before {self.next}")
        self._known[draw] = informative
        found = []
        while self._unplaced in self._known:
            found.append(self._place(self._unplaced, self._known.pop(self._unplaced)))
            self._unplaced += 1
        return found

    def _place(self, draw: int, informative: bool) -> Assignment:
        batch = self.batch
        self._used, self._found = self._used + 1, self._found + informative
        last = self._is_full(self._used, self._found)
        if last:
            self.batch, self._used, self._found = batch + 1, 0, 0
        return Assignment(draw, batch, informative, last)

    def _is_full(self, used: int, found: int) -> bool:
        return found == self.size or used == self.most
