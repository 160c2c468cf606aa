"""All actors of a run: made from the config, started together, ended together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import ray

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.actors.shared_device import OWN, SharedDevice
from marl_ray.actors.shared_learner import SharedLearner, shared_learner_views
from marl_ray.actors.supervisor import ActorSpec, Supervisor
from marl_ray.actors.vllm_arguments import EngineSpec, engine_environment
from marl_ray.cluster.placement_group import PlacementGroups, reserve
from marl_ray.cluster.placement_plan import PlacementPlan, learner_id, make_plan
from marl_ray.config import Config
from marl_ray.core.concurrency import gather
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import learner_arguments, wire_dtype
from marl_ray.models.names import resolve_model
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.timing import StartupTimer

logger = logging.getLogger(__name__)

MANY_CALLS = 100_000
"""Ray would let 1000 calls into an asynchronous actor at a time; the engine has a queue of its own."""
NO_SHARED_DEVICES: Mapping[int | None, SharedDevice] = MappingProxyType({})
PARTS: dict[type[Any], str] = {GeneratorGroup: "generators", LearnerGroup: "learners", SandboxPool: "sandbox"}
TRANSPORTS = {"store": "Ray's object store", "nccl": "NCCL", "ipc": "CUDA IPC"}


class ActorGroup(Protocol):
    """Actors that are started and ended together."""

    async def start(self) -> list[str]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunActors:
    """The actors of a run."""

    generators: list[GeneratorGroup]
    """By agent: those of one policy have one."""
    learners: list[LearnerGroup]
    """By policy."""
    sandbox: SandboxPool
    places: PlacementGroups
    devices: Sequence[SharedDevice] = ()
    """Those where generators and learners take turns."""

    @property
    def groups(self) -> list[ActorGroup]:
        """All of them."""
        return [self.sandbox, *dict.fromkeys(self.generators), *self.learners]

    @property
    def transport(self) -> str:
        """How weights travel, in words."""
        return " and ".join(TRANSPORTS[name] for name in sorted({learner.transport for learner in self.learners}))

    def learner_of(self, agent: int) -> LearnerGroup:
        """The one of the agent's policy."""
        return next(learner for learner in self.learners if agent in learner.policy.agents)

    def pop_memory_metrics(self, step: int) -> MetricRow:
        """Metrics of the devices in a step; they are forgotten."""
        return {name: value for device in self.devices for name, value in device.pop_memory_metrics(step).items()}

    async def close(self) -> None:
        """End all actors and free their places."""
        for group in self.groups:
            await group.close()
        self.places.release()


async def start_actors(config: Config, optimizer_steps: int, startup: StartupTimer | None = None) -> RunActors:
    """Start every actor; returns when each has answered. `startup` is told how long each kind
    took.

    `optimizer_steps` are what the learners' schedules span. Raises UserError before any actor is created when the
    cluster cannot hold them, and what an actor raises that does not start.
    """
    plan = make_plan(config, cluster_has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
    startup = StartupTimer() if startup is None else startup
    with startup.part("placement"):
        places = await reserve(plan, config.resources.deadlines.placement_s)
    devices = _devices(config, plan)
    of_policy = {policy: generator_group(config, policy.number, places, devices) for policy in config.policies}
    team = RunActors(
        [of_policy[config.policy_of(agent)] for agent in range(config.num_agents)],
        _learners(config, places, optimizer_steps, devices),
        sandbox_pool(config, places),
        places,
        list(devices.values()),
    )

    async def start(group: ActorGroup) -> list[str]:
        with startup.part(PARTS[type(group)]):
            return await group.start()

    try:
        for notes in await gather(*map(start, team.groups)):
            for note in notes:
                logger.info(note)
    except BaseException:
        await team.close()
        raise
    return team


def _devices(config: Config, plan: PlacementPlan) -> dict[int | None, SharedDevice]:
    """Those where generators and learners take turns, by number."""
    shared = {of_agent.device: of_agent.generator_gpus > 0 for of_agent in plan.agents if of_agent.device is not None}
    patience = Deadline(config.resources.deadlines.sync_s, "sync_s", "to make room on its device")
    return {number: SharedDevice(number, gpu, patience) for number, gpu in shared.items()}


def generator_group(
    config: Config, number: int, places: PlacementGroups, devices: Mapping[int | None, SharedDevice] = NO_SHARED_DEVICES
) -> GeneratorGroup:
    """The generators of an agent's policy, not yet started."""
    device = devices.get(places.plan.agents[number].device)
    agent, gpus, policy = config.agents[number], places.plan.agents[number].generator_gpus, config.policy_of(number)
    spec = EngineSpec(
        model=resolve_model(agent.name),
        dtype=wire_dtype(agent, gpus > 0),
        max_length=config.model.max_length,
        trust_remote_code=config.model.model_kwargs.trust_remote_code,
        on_gpu=gpus > 0,
        tensor_parallel=agent.generator.tensor_parallel,
        gpu_memory_utilization=agent.generator.gpu_memory_utilization,
        kv_cache_mb=agent.generator.kv_cache_mb,
        max_num_seqs=agent.generator.max_num_seqs,
        transport=places.plan.agents[number].transport,
        drain=config.rollout.inflight == "drain",
        colocated=device is not None,
    )
    environment = engine_environment(
        agent.generator.cpus, spec.on_gpu, Path(spec.model).is_dir(), config.output.verbose
    )
    options = {
        "num_cpus": agent.generator.cpus,
        "num_gpus": gpus,
        "max_concurrency": MANY_CALLS,
        "runtime_env": {"env_vars": environment},
    }

    def recipe(name: ActorId) -> ActorSpec[GenerationActor]:
        return ActorSpec(
            name, GenerationActor, (name, spec, config.model), options | {"scheduling_strategy": places.strategy(name)}
        )

    async def place(replica: int) -> ActorSpec[GenerationActor]:
        name = ActorId("generator", policy, replica)
        await places.add(name, config.resources.deadlines.placement_s)
        return recipe(name)

    group = GeneratorGroup(
        [recipe(ActorId("generator", policy, replica)) for replica in range(agent.generator.replicas)],
        agent.generator.tensor_parallel,
        config.resources.deadlines,
        agent.generator.max_restarts,
        None if spec.transport == "ipc" or device else place,
        places.remove,
    )
    if device is not None and device.gpu:
        group.replicas.turn = device.alone
    return group


def _learners(
    config: Config, places: PlacementGroups, optimizer_steps: int, devices: Mapping[int | None, SharedDevice]
) -> list[LearnerGroup]:
    """One a policy, not yet started."""
    groups: dict[PolicyId, LearnerGroup] = {}
    deadlines = config.resources.deadlines
    for policies in config.learner_groups:
        first = policies[0]
        agent, plan = config.agents[first.number], places.plan.agents[first.number]
        on_gpus = plan.generator_gpus > 0
        arguments = {policy: learner_arguments(config, policy, on_gpus, optimizer_steps) for policy in policies}
        options = {
            "num_cpus": agent.learner.cpus,
            "num_gpus": plan.learner_gpus,
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(arguments[first].threads)}},
        }
        restarts = agent.learner.max_restarts
        if len(policies) == 1:
            device = devices.get(plan.device, OWN)
            ranks = [ActorId("learner", first, rank) for rank in range(agent.learner.ranks)]
            recipes = [
                ActorSpec(
                    rank,
                    LearnerActor,
                    (rank, arguments[first], device.by_turns),
                    options | {"scheduling_strategy": places.strategy(rank)},
                )
                for rank in ranks
            ]
            group = groups[first] = LearnerGroup(first, recipes, plan.transport, deadlines, restarts, device=device)
            if plan.device is not None and plan.learner_gpus and isinstance(group.ranks, Supervisor):
                group.ranks.turn = devices[plan.device].borrowed
            continue
        name = learner_id(config, first)
        shared = ActorSpec(
            name, SharedLearner, (name, arguments), options | {"scheduling_strategy": places.strategy(name)}
        )
        for policy, view in shared_learner_views(policies, shared, deadlines, restarts).items():
            groups[policy] = LearnerGroup(policy, [], plan.transport, deadlines, shared=view)
    return [groups[policy] for policy in config.policies]


def sandbox_pool(config: Config, places: PlacementGroups) -> SandboxPool:
    """The sandbox workers, not yet started."""
    resources, deadlines = config.resources.sandbox, config.resources.deadlines
    return SandboxPool(
        sandbox_settings(config),
        resources.workers,
        num_cpus_per_worker=resources.cpus,
        start=Deadline(deadlines.start_s, "start_s", "to start"),
        restarts=resources.max_restarts,
        deadline_s=deadlines.heartbeat_s,
        scheduling=[places.strategy(ActorId("sandbox", None, worker)) for worker in range(resources.workers)],
    )
