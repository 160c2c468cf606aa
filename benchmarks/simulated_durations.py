"""Modelled durations: what generating, executing, learning and publishing take, as `benchmarks.simulate` imagines and
`benchmarks.rollout_overlap` imposes them."""

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
    """One agent's speed. Seconds everywhere."""

    token_s: float = 0.02
    """For one token of a sequence; an engine's sequences run side by side."""
    slots: int = 64
    """Sequences that one engine runs at the same time."""
    mean_tokens: float = 200.0
    """Of a completion: log-normal, cut at twice the mean, as max_new_tokens does."""
    sigma: float = 0.5
    """Of the logarithm of the length."""
    learn_s: float = 0.02
    """For one completion that is learned from."""
    optimizer_s: float = 0.2
    """For the optimizer step, once a batch is complete."""
    publish_s: float = 0.3
    """For new weights to be in all engines of the agent."""

    def lengths(self, seed: int, count: int) -> list[int]:
        """Tokens of each completion of a group; a function of the seed, as real completions are."""
        rng = random.Random(seed)
        middle = math.log(self.mean_tokens) - self.sigma**2 / 2
        most = round(2 * self.mean_tokens)
        return [max(1, min(most, round(rng.lognormvariate(middle, self.sigma)))) for _ in range(count)]


def parse_paces(text: str) -> tuple[Pace, ...]:
    """`token_s=0.02,slots=64;token_s=0.01`, one an agent, as an argument's type."""
    return tuple(Pace(**dict(_setting(part) for part in agent.split(",") if part.strip())) for agent in text.split(";"))


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = (part.strip() for part in text.partition("="))
    known = {field.name: int if field.type == "int" else float for field in fields(Pace)}
    if name not in known:
        raise argparse.ArgumentTypeError(f"a pace has no {name!r}: it has {', '.join(known)}")
    try:
        return name, known[name](value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name} is a number, not {value!r}") from None


class SlotEngine:
    """An engine as so many slots: a sequence holds one for its length, and the oldest batch waits least.

    It runs on the running event loop's clock, real or virtual.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.busy_s = 0.0
        """Slot seconds that were used."""
        self.in_flight = 0
        """Sequences that run or wait."""
        self._free = pace.slots
        self._waiting: list[tuple[int, int, float, _Group]] = []
        self._numbers = itertools.count()
        self._running: dict[_Sequence, asyncio.TimerHandle] = {}

    async def generate(self, lengths: Sequence[int], priority: int) -> None:
        """Returns when every sequence of the group has its length. Raises ConnectionError when the engine is lost."""
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
        """The engine is gone: so is all that it had begun, and all that waits for it."""
        begun = [sequence.group for sequence in self._running]
        groups = dict.fromkeys([*begun, *(group for *_, group in sorted(self._waiting, key=lambda one: one[:2]))])
        for timer in self._running.values():
            timer.cancel()
        self._running.clear()
        self._waiting.clear()
        self._free = self.pace.slots
        for group in groups:
            if not group.done.done():
                group.done.set_exception(ConnectionError("the engine is lost"))

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
