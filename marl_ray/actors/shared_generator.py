"""Generators of several policies, whose engine has the base model once and an adapter per policy.

    GeneratorGroup of agent 0 -- SharedGeneratorView --+
                                                       +-- Supervisor -- SharedGenerator: GenerationActor of agent 0, 1
    GeneratorGroup of agent 1 -- SharedGeneratorView --+

Requests of all policies share the engine's batches. Each policy has its own versions and weight updates. After a loss
of a process the adapters of all policies are sent before the next incarnation serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

from marl_ray.actors.engine_arguments import EngineSpec
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.handle import Actor, Call, Handle
from marl_ray.actors.supervisor import ActorSpec, Initialize, RestartLimits, Supervisor
from marl_ray.cluster.placement_group import BundleGpus
from marl_ray.config import ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId


class SharedGenerator(Actor):
    """Ray actor (asynchronous): the generation actors of several policies on the engine of the first one."""

    def __init__(
        self,
        id: ActorId,
        policies: Sequence[PolicyId],
        spec: EngineSpec,
        model: ModelConfig,
        gpus: BundleGpus | None = None,
    ) -> None:
        self.id = id
        self._members: dict[PolicyId, GenerationActor] = {}
        for adapter, policy in enumerate(policies):
            member_id = ActorId("generator", policy, id.replica)
            self._members[policy] = GenerationActor(member_id, spec, model, gpus, adapter)

    async def start(self) -> list[str]:
        """Load the engine once, and a tokenizer per policy."""
        first, *others = self._members.values()
        notes = await first.start()
        for member in others:
            member.shared_engine = first.engine
            notes += await member.start()
        if self.id.replica == 0:  # the other replicas are alike
            policies = ", ".join(map(str, self._members))
            notes.append(f"{self.id} has one engine for {policies}")
        return notes

    async def heartbeat(self) -> None:
        first = next(iter(self._members.values()))
        await first.heartbeat()  # of the engine, which is the same for all

    async def call_generator(self, policy: PolicyId, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a policy's `GenerationActor`."""
        return await getattr(self._members[policy], method)(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class SharedGeneratorHandle(Handle[GenerationActor]):
    """One policy's generator in an incarnation of a shared process."""

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Submit a method call without waiting for its result."""
        # Not serialised, unlike calls to a shared learner: the actor is asynchronous.
        reference = self.actor.call_generator.remote(self.id.policy, method.__name__, *args, **kwargs)
        return Call(self, method.__name__, reference)


class SharedGeneratorView:
    """One policy's view of the shared processes, with the interface of a `Supervisor` that `GeneratorGroup` uses."""

    def __init__(
        self, policy: PolicyId, initialize: Initialize[GenerationActor], processes: SharedGeneratorProcesses
    ) -> None:
        self.initialize = initialize
        self._policy = policy
        self._processes = processes
        self._supervisor = processes.supervisor
        self._handles: dict[Handle[SharedGenerator], SharedGeneratorHandle] = {}
        self._shared: dict[Handle[GenerationActor], Handle[SharedGenerator]] = {}
        self.early: dict[Handle[SharedGenerator], str | None] = {}
        """Processes that have this policy's adapter, and do not serve before they have the adapters of all policies;
        with the reason of a loss, or None while the process is alive."""

    @property
    def _is_first(self) -> bool:
        return self._processes.views[0] is self

    @property
    def lost_count(self) -> int:
        """Number of lost incarnations, counted for the first policy only."""
        return self._supervisor.lost_count if self._is_first else 0

    async def start(self) -> list[list[str]]:
        """Start the processes, if this is the first policy; all groups of a run are started together."""
        if not self._is_first:
            return []
        return await self._supervisor.start()

    async def close(self) -> None:
        """End the processes for all policies; all groups of a run are closed together."""
        await self._supervisor.close()

    def serving(self) -> list[Handle[GenerationActor]]:
        """Return this policy's handles of all processes that have its adapter, and must receive its updates."""
        return [self.handle(shared) for shared in (*self._supervisor.serving(), *self.early)]

    def is_suspect(self, handle: Handle[GenerationActor]) -> bool:
        return self._supervisor.is_suspect(self._shared[handle])

    async def wait_ready(self, all_members: bool = False) -> list[Handle[GenerationActor]]:
        return [self.handle(shared) for shared in await self._supervisor.wait_ready(all_members)]

    async def raise_loss(self) -> NoReturn:
        await self._supervisor.raise_loss()

    def report_lost(self, handle: Handle[GenerationActor], reason: str) -> None:
        """End this incarnation of a process, for all policies."""
        shared = self._shared[handle]
        if shared in self.early:
            self.early[shared] = reason  # the supervisor ignores losses of actors that do not serve yet
        self._supervisor.report_lost(shared, reason)

    def confirm_success(self) -> None:
        self._supervisor.confirm_success()

    def retired(self) -> list[ActorId]:
        return self._supervisor.retired()

    def handle(self, shared: Handle[SharedGenerator]) -> Handle[GenerationActor]:
        """Return the policy's handle of an incarnation of a process, always the same object."""
        # Groups count requests in flight, and devices their engines, by this object.
        if shared not in self._handles:
            id = ActorId("generator", self._policy, shared.id.replica)
            handle = SharedGeneratorHandle(id, shared.actor, shared.incarnation, shared.location)
            self._handles[shared] = handle
            self._shared[handle] = shared
        return self._handles[shared]


class SharedGeneratorProcesses:
    """The supervised processes. A process serves after all policies with a view have initialised their generators."""

    def __init__(
        self,
        specs: Sequence[ActorSpec[SharedGenerator]],
        policy: RestartLimits,
        start_lock: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self.supervisor = Supervisor(specs, policy, self._initialize, start_lock)
        self.views: list[SharedGeneratorView] = []

    def view(self, policy: PolicyId, initialize: Initialize[GenerationActor]) -> SharedGeneratorView:
        """Return a policy's view. `initialize` sends the policy's adapter to each incarnation."""
        self.views.append(SharedGeneratorView(policy, initialize, self))
        return self.views[-1]

    async def _initialize(self, shared: Handle[SharedGenerator]) -> None:
        try:
            for view in self.views:
                await view.initialize(view.handle(shared))
                # From now on this policy's updates reach the process, while other policies send their adapters.
                view.early[shared] = None
            reasons = [view.early[shared] for view in self.views]
        finally:
            for view in self.views:
                view.early.pop(shared, None)
        for reason in reasons:
            if reason is not None:
                raise UserError(reason)
