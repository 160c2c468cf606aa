"""One process for the learners of several policies, whose adapters share one frozen model on its device.

Each policy keeps its `LearnerGroup`: clock, publications, checkpoints and replay are its own, and so are its learner's
adapter, optimizer, schedule and numbers, which are those of a process of its own. What is shared is the process, and
so its loss: in its next incarnation every policy's learner is made again before any is asked.

    LearnerGroup of agent 0 -- SharedLearnerView --+
                                             +-- Supervisor -- SharedLearner: LearnerActor of agent 0, of agent 1
    LearnerGroup of agent 1 -- SharedLearnerView --+

They compute in turns, a call each. A call is sent when it is its turn, so that its deadline is for its own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ray

from marl_ray.actors.handle import Actor, Call, Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.supervisor import ActorSpec, RestartPolicy, Supervisor
from marl_ray.config import Deadlines
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import LearnerArguments


class SharedLearner(Actor):
    """Ray actor: the learners of several policies, one rank each, on the first one's model."""

    concurrency_groups = MappingProxyType({"signs": 1})

    def __init__(self, id: ActorId, arguments: Mapping[PolicyId, LearnerArguments]) -> None:
        self.id = id
        self._members = {policy: LearnerActor(ActorId("learner", policy), its) for policy, its in arguments.items()}

    def start(self) -> list[str]:
        """Load the model, once."""
        first, *others = self._members.values()
        notes = first.start()
        for member in others:
            notes += member.start(beside=first.learner)
        return [*notes, f"{self.id} has one model for {', '.join(map(str, self._members))}"]

    @ray.method(concurrency_group="signs")
    def alive(self) -> None:  # type: ignore[override]
        """Answers, whatever the learners do."""

    def ask(self, policy: PolicyId, method: str, *args: Any, **kwargs: Any) -> Any:
        """What a policy's `LearnerActor` answers."""
        member = self._members[policy]
        member.learner.activate()
        return getattr(member, method)(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class SharedLearnerHandle(Handle[LearnerActor]):
    """One policy's learner in a incarnation of the process that it shares: a call waits for its turn."""

    turns: asyncio.Lock = field(default_factory=asyncio.Lock)

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As of a process of its own, but that nothing is asked before somebody waits for the answer."""
        ask: Any = super().call
        return _InTurn(self.turns, lambda: ask(SharedLearner.ask, self.id.policy, method.__name__, *args, **kwargs))


@dataclass(frozen=True, slots=True)
class _InTurn:
    turns: asyncio.Lock
    ask: Callable[[], Call[Any]]

    async def within(self, deadline: Deadline) -> Any:
        """The answer, when those before have theirs. Raises what `Call.within` does."""
        async with self.turns:
            return await self.ask().within(deadline)


class SharedLearnerView:
    """One policy's view of the process: what `LearnerGroup` knows of its `Supervisor`."""

    def __init__(self, policy: PolicyId, shared: Supervisor[SharedLearner], turns: asyncio.Lock, leads: bool) -> None:
        self.fit: Callable[[Handle[LearnerActor]], Awaitable[None]] | None = None
        self._id = ActorId("learner", policy)
        self._shared, self._turns, self._leads = shared, turns, leads

    async def start(self) -> list[list[str]]:
        """The first policy starts it for all: a team's groups are started together."""
        return await self._shared.start() if self._leads else []

    async def close(self) -> None:
        """End it for all: a team's groups are ended together."""
        await self._shared.close()

    def serving(self) -> list[Handle[LearnerActor]]:
        """This policy's handle, if the process can be asked."""
        return [self.of(handle) for handle in self._shared.serving()]

    async def wait_ready(self, all_members: bool = False) -> list[Handle[LearnerActor]]:
        """See `Supervisor.ready`."""
        return [self.of(handle) for handle in await self._shared.wait_ready(all_members)]

    def report_lost(self, handle: Handle[LearnerActor], why: str) -> None:
        """This incarnation of the process is over, for all policies."""
        for shared in self._shared.serving():
            if shared.incarnation == handle.incarnation:
                self._shared.report_lost(shared, why)

    def of(self, shared: Handle[SharedLearner]) -> Handle[LearnerActor]:
        """The policy's own handle of that incarnation."""
        return SharedLearnerHandle(self._id, shared.actor, shared.incarnation, shared.location, self._turns)


def shared_learner_views(
    policies: Sequence[PolicyId], recipe: ActorSpec[SharedLearner], deadlines: Deadlines, restarts: int
) -> dict[PolicyId, SharedLearnerView]:
    """The views of these policies on one process, which is not yet started. `restarts`: see `RestartPolicy`.

    A incarnation of it serves once it is fit for all of them.
    """
    care = RestartPolicy(Deadline(deadlines.start_s, "start_s", "to start"), restarts, deadlines.heartbeat_s)
    shared, turns = Supervisor([recipe], care), asyncio.Lock()
    views = {policy: SharedLearnerView(policy, shared, turns, leads=policy == policies[0]) for policy in policies}

    async def fit(handle: Handle[SharedLearner]) -> None:
        for view in views.values():
            if view.fit is not None:
                await view.fit(view.of(handle))

    shared.fit = fit
    return views
