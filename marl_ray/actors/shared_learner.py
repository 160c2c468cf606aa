"""One process for the learners of several policies, whose adapters share one frozen model on its device.

    LearnerGroup of agent 0 -- SharedLearnerView --+
                                                   +-- Supervisor -- SharedLearner: LearnerActor of agent 0, of agent 1
    LearnerGroup of agent 1 -- SharedLearnerView --+

Each policy has the same results as in a process of its own. After a loss of the process all learners are restored
before any of them is used. Calls to the process are serialised, so a deadline covers only the call itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import ray

from marl_ray.actors.handle import Actor, Call, Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.supervisor import ActorSpec, Initialize, RestartLimits, Supervisor
from marl_ray.cluster.placement_group import BundleGpus
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import LearnerArguments


class SharedLearner(Actor):
    """Ray actor: the learners of several policies, one rank each, on the base model of the first one."""

    concurrency_groups = MappingProxyType({"heartbeat": 1, "checkpoint": 1})

    def __init__(
        self, id: ActorId, arguments: Mapping[PolicyId, LearnerArguments], gpus: BundleGpus | None = None
    ) -> None:
        self.id = id
        self._members: dict[PolicyId, LearnerActor] = {}
        for policy, learner_arguments in arguments.items():
            self._members[policy] = LearnerActor(ActorId("learner", policy), learner_arguments, gpus=gpus)

    def start(self) -> list[str]:
        """Load the base model once and all adapters."""
        first, *others = self._members.values()
        notes = first.start()
        for member in others:
            notes += member.start(base=first.learner)
        policies = ", ".join(map(str, self._members))
        return [*notes, f"{self.id} has one model for {policies}"]

    @ray.method(concurrency_group="heartbeat")
    def heartbeat(self) -> None:  # type: ignore[override]
        """Return at once."""

    def call_learner(self, policy: PolicyId, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a policy's `LearnerActor`."""
        member = self._members[policy]
        member.learner.activate()
        return getattr(member, method)(*args, **kwargs)

    @ray.method(concurrency_group="checkpoint")
    def finish_save(self, policy: PolicyId) -> None:
        """Write the state that a policy's learner has copied, while other learners may train."""
        self._members[policy].finish_save()


@dataclass(frozen=True, eq=False)
class SharedLearnerHandle(Handle[LearnerActor]):
    """One policy's learner in an incarnation of the shared process; its calls wait for the process."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    write_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Prepare a call, which is submitted when its result is awaited and the process is free."""
        submit: Any = super().call
        policy = self.id.policy
        if method is LearnerActor.finish_save:
            # A write goes on while other learners train, so it waits for other writes only.
            return _QueuedCall(self.write_lock, lambda: submit(SharedLearner.finish_save, policy))
        name = method.__name__
        return _QueuedCall(self.lock, lambda: submit(SharedLearner.call_learner, policy, name, *args, **kwargs))


@dataclass(frozen=True, slots=True)
class _QueuedCall:
    lock: asyncio.Lock
    submit: Callable[[], Call[Any]]

    async def within(self, deadline: Deadline) -> Any:
        """Wait for the process, then for the result. Raises the errors of `Call.within`."""
        async with self.lock:
            return await self.submit().within(deadline)


class SharedLearnerView:
    """One policy's view of the shared process, with the interface of a `Supervisor` that `LearnerGroup` uses."""

    def __init__(self, policy: PolicyId, initialize: Initialize[LearnerActor], process: SharedLearnerProcess) -> None:
        self.initialize = initialize
        self._id = ActorId("learner", policy)
        self._process = process
        self._supervisor = process.supervisor

    @property
    def _is_first(self) -> bool:
        return self._process.views[0] is self

    @property
    def lost_count(self) -> int:
        """Number of lost incarnations, counted for the first policy of the process only."""
        return self._supervisor.lost_count if self._is_first else 0

    async def start(self) -> list[list[str]]:
        """Start the process, if this is the first policy; all groups of a run are started together."""
        if not self._is_first:
            return []
        return await self._supervisor.start()

    async def close(self) -> None:
        """End the process for all policies; all groups of a run are closed together."""
        await self._supervisor.close()

    def serving(self) -> list[Handle[LearnerActor]]:
        """Return this policy's handle if the process serves."""
        return [self.handle(shared) for shared in self._supervisor.serving()]

    async def wait_ready(self, all_members: bool = False) -> list[Handle[LearnerActor]]:
        return [self.handle(shared) for shared in await self._supervisor.wait_ready(all_members)]

    def report_lost(self, handle: Handle[LearnerActor], reason: str) -> None:
        """End this incarnation of the process, for all policies."""
        for shared in self._supervisor.serving():
            if shared.incarnation == handle.incarnation:
                self._supervisor.report_lost(shared, reason)

    def confirm_success(self) -> None:
        self._supervisor.confirm_success()

    def handle(self, shared: Handle[SharedLearner]) -> Handle[LearnerActor]:
        """Return the policy's handle for an incarnation of the process."""
        process = self._process
        return SharedLearnerHandle(
            self._id, shared.actor, shared.incarnation, shared.location, process.lock, process.write_lock
        )


class SharedLearnerProcess:
    """The supervised process. It serves after the learners of all policies with a view have been initialised."""

    def __init__(
        self,
        spec: ActorSpec[SharedLearner],
        policy: RestartLimits,
        start_lock: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.supervisor = Supervisor([spec], policy, self._initialize, start_lock)
        self.lock = asyncio.Lock()
        self.write_lock = asyncio.Lock()
        self.views: list[SharedLearnerView] = []

    def view(self, policy: PolicyId, initialize: Initialize[LearnerActor]) -> SharedLearnerView:
        """Return a policy's view. `initialize` restores the policy's learner in each incarnation."""
        self.views.append(SharedLearnerView(policy, initialize, self))
        return self.views[-1]

    async def _initialize(self, shared: Handle[SharedLearner]) -> None:
        for view in self.views:
            await view.initialize(view.handle(shared))
