"""Modelled durations of generation, execution, learning and weight updates, used by `benchmarks.simulate` and
`benchmarks.rollout_overlap`."""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Pace:
    """The speed of one agent; times are in seconds."""

    token_s: float = 0.02
    """Time per token of a sequence; the sequences of an engine run concurrently."""
    slots: int = 64
    """Maximum number of concurrent sequences per engine."""
    mean_tokens: float = 200.0
    """Mean tokens per completion: log-normal, cut at twice the mean, as by max_new_tokens."""
    sigma: float = 0.5
    """Standard deviation of the logarithm of the length."""
    learn_s: float = 0.02
    """Time to learn one completion."""
    optimizer_s: float = 0.2
    """Time of the optimizer step after a complete batch."""
    publish_s: float = 0.3
    """Time to update the weights of all engines of the agent."""

    def lengths(self, seed: int, count: int) -> list[int]:
        """Return the tokens of each completion of a group, which depend only on the seed."""
        rng = random.Random(seed)
        middle = math.log(self.mean_tokens) - self.sigma**2 / 2
        most = round(2 * self.mean_tokens)
        return [max(1, min(most, round(rng.lognormvariate(middle, self.sigma)))) for _ in range(count)]


def parse_paces(text: str) -> tuple[Pace, ...]:
    """Convert an argument such as `token_s=0.02,slots=64;token_s=0.01` to one pace per agent."""
    return tuple(Pace(**dict(_setting(part) for part in agent.split(",") if part.strip())) for agent in text.split(";"))


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = (part.strip() for part in text.partition("="))
    known = {field.name: int if field.type == "int" else float for field in fields(Pace)}
    if name not in known:
        raise argparse.ArgumentTypeError(f"unknown field {name!r} of a pace: the fields are {', '.join(known)}")
    try:
        return name, known[name](value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} should be a number, got {value!r}") from None


class SlotEngine:
    """An engine with a fixed number of slots. A sequence occupies a slot for its length; lower priorities start first.

    Durations are measured on the clock of the running event loop, real or virtual.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.busy_s = 0.0
        """Used slot seconds."""
        self.in_flight = 0
        """Number of running and waiting sequences."""
        self._free = pace.slots
        self._waiting: list[tuple[int, int, float, _Group]] = []
        self._numbers = itertools.count()
        self._running: dict[_Sequence, asyncio.TimerHandle] = {}

    async def generate(self, lengths: Sequence[int], priority: int) -> None:
        """Return when all sequences of the group are complete. Raises ConnectionError if the engine fails."""
        group = _Group(len(lengths), asyncio.get_running_loop().create_future())
        self.in_flight += len(lengths)
        for length in lengths:
            heapq.heappush(self._waiting, (priority, next(self._numbers), length * self.pace.token_s, group))
        self._start()
        try:
            await group.done
        finally:
            self.in_flight -= len(lengths)

    def lose(self) -> None:
        """Fail all running and waiting groups."""
        running = [sequence.group for sequence in self._running]
        groups = dict.fromkeys([*running, *(group for *_, group in sorted(self._waiting, key=lambda one: one[:2]))])
        for timer in self._running.values():
            timer.cancel()
        self._running.clear()
        self._waiting.clear()
        self._free = self.pace.slots
        for group in groups:
            if not group.done.done():
                group.done.set_exception(ConnectionError("the engine failed"))

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        while self._free and self._waiting:
            _, number, seconds, group = heapq.heappop(self._waiting)
            self._free -= 1
            sequence = _Sequence(number, seconds, group)
            self._running[sequence] = loop.call_later(seconds, self._end, sequence)

    def _end(self, sequence: _Sequence) -> None:
        del self._running[sequence]
        self.busy_s += sequence.seconds
        self._free += 1
        group = sequence.group
        group.left -= 1
        if not group.left:
            group.done.set_result(None)
        self._start()


@dataclass(eq=False)
class _Group:
    left: int
    done: asyncio.Future[None]


@dataclass(eq=False)
class _Sequence:
    number: int
    seconds: float
    group: _Group
