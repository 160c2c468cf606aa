"""A learner group with a stand-in for its rank; other modules test it with real ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_group import LearnerGroup, RankSupervisor
from marl_ray.config import Deadlines
from marl_ray.core.ids import PolicyId


@dataclass
class Rank:
    """A rank that records calls by name, each of which returns when its future is resolved."""

    calls: list[str] = field(default_factory=list)
    answers: list[asyncio.Future[None]] = field(default_factory=list)

    def call(self, method: Callable[..., Any], *_: Any) -> Rank:
        self.calls.append(method.__name__)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self

    async def within(self, deadline: Deadline) -> None:
        await self.answers[-1]


@dataclass
class Ranks:
    """A supervisor of one rank, which is never lost."""

    rank: Rank

    async def wait_ready(self, all_members: bool) -> list[Rank]:
        return [self.rank]


def test_the_deadline_of_a_queued_call_starts_when_it_is_submitted() -> None:
    # For example, a weight update of a restarted generator during an optimizer step that takes longer than sync_s.

    async def scenario() -> None:
        rank = Rank()
        supervise = lambda initialize: cast(RankSupervisor, Ranks(rank))  # noqa: E731
        group = LearnerGroup(PolicyId((0,)), supervise, 1, "store", Deadlines())
        both = [asyncio.create_task(group.begin_save("a")), asyncio.create_task(group.export("b", []))]
        for calls in (["begin_save"], ["begin_save", "export"]):
            for _ in range(20):
                await asyncio.sleep(0)
            assert rank.calls == calls
            rank.answers[-1].set_result(None)
        await asyncio.gather(*both)

    asyncio.run(scenario())
