"""A learner's group, with a rank that stands in for a real one: those are asked in the other modules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.shared_learner import SharedLearnerView
from marl_ray.config import Deadlines
from marl_ray.core.ids import PolicyId


@dataclass
class Rank:
    """What it was asked, by name; each call is answered when it is told to."""

    asked: list[str] = field(default_factory=list)
    answers: list[asyncio.Future[None]] = field(default_factory=list)

    def call(self, method: Callable[..., Any], *_: Any) -> Rank:
        self.asked.append(method.__name__)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self

    async def within(self, deadline: Deadline) -> None:
        await self.answers[-1]


@dataclass
class Ranks:
    """One rank, which is never lost."""

    rank: Rank
    fit: Callable[[Handle[LearnerActor]], Awaitable[None]] | None = None

    async def wait_ready(self, everyone: bool) -> list[Rank]:
        return [self.rank]


def test_a_call_waits_for_its_turn_here_where_its_deadline_has_not_begun() -> None:
    """A publication to a generator that is back, say, during an update that takes longer than sync_s."""

    async def scenario() -> None:
        rank = Rank()
        group = LearnerGroup(PolicyId((0,)), [], "store", Deadlines(), shared=cast(SharedLearnerView, Ranks(rank)))
        both = [asyncio.create_task(group.save("a")), asyncio.create_task(group.export("b", []))]
        for asked in (["save"], ["save", "export"]):
            for _ in range(20):
                await asyncio.sleep(0)
            assert rank.asked == asked
            rank.answers[-1].set_result(None)
        await asyncio.gather(*both)

    asyncio.run(scenario())
