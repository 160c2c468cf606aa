"""All actors of a run: created from the config, started together and ended together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import ray

from marl_ray.actors.engine import EngineSpec, engine_environment
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup, supervise_ranks
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.actors.shared_device import DEDICATED, SharedDevice
from marl_ray.actors.shared_learner import SharedLearner, SharedLearnerProcess
from marl_ray.actors.supervisor import ActorSpec, Initialize
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

MAX_CONCURRENT_CALLS = 100_000
"""Concurrent calls to a generator. Ray's default is 1000, but the engine has its own queue."""
STARTUP_PARTS: dict[type[Any], str] = {GeneratorGroup: "generators", LearnerGroup: "learners", SandboxPool: "sandbox"}
TRANSPORTS = {"store": "Ray's object store", "nccl": "NCCL", "ipc": "CUDA IPC"}
Devices = Mapping[int | None, SharedDevice]
"""Devices that generators and learners use in turns, by number."""


class ActorGroup(Protocol):
    """Actors that are started and ended together."""

    async def start(self) -> list[str]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunActors:
    """The actors of a run."""

    generators: list[GeneratorGroup]
    """Generator group of each agent; agents of one policy share a group."""
    learners: list[LearnerGroup]
    """Learner group of each policy."""
    sandbox: SandboxPool
    placement: PlacementGroups
    devices: Sequence[SharedDevice] = ()
    """Devices that generators and learners use in turns."""

    @property
    def groups(self) -> list[ActorGroup]:
        """All groups, without duplicates."""
        return [self.sandbox, *dict.fromkeys(self.generators), *self.learners]

    @property
    def transport(self) -> str:
        """The weight transports, for the console."""
        return " and ".join(TRANSPORTS[name] for name in sorted({learner.transport for learner in self.learners}))

    def learner_of(self, agent: int) -> LearnerGroup:
        """Return the learner group of the agent's policy."""
        return next(learner for learner in self.learners if agent in learner.policy.agents)

    def pop_memory_metrics(self, step: int) -> MetricRow:
        """Remove and return the memory metrics of all shared devices in a step."""
        return {name: value for device in self.devices for name, value in device.pop_memory_metrics(step).items()}

    async def close(self) -> None:
        """End all actors and release their resources."""
        for group in self.groups:
            await group.close()
        self.placement.release()


async def start_actors(config: Config, optimizer_steps: int, startup: StartupTimer | None = None) -> RunActors:
    """Create all actors of a run, and wait until they have started.

    `optimizer_steps` is the length of the learners' schedules; `startup` records the duration of each part. Raises
    UserError before any actor is created if the cluster lacks the resources, and the error of an actor that does not
    start.
    """
    plan = make_plan(config, cluster_has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
    startup = StartupTimer() if startup is None else startup
    with startup.part("placement"):
        placement = await reserve(plan, config.resources.deadlines.placement_s)
    devices = _make_devices(config, plan)
    learners = _make_learner_groups(config, placement, optimizer_steps, devices)
    generators = {
        learner.policy: make_generator_group(
            config, learner.policy.number, placement, learner.initialize_generator, devices
        )
        for learner in learners
    }
    actors = RunActors(
        [generators[config.policy_of(agent)] for agent in range(config.num_agents)],
        learners,
        make_sandbox_pool(config, placement),
        placement,
        list(devices.values()),
    )

    async def start(group: ActorGroup) -> list[str]:
        with startup.part(STARTUP_PARTS[type(group)]):
            return await group.start()

    try:
        for notes in await gather(*map(start, actors.groups)):
            for note in notes:
                logger.info(note)
    except BaseException:
        await actors.close()
        raise
    return actors


def _make_devices(config: Config, plan: PlacementPlan) -> Devices:
    shared = {agent.device: agent.generator_gpus > 0 for agent in plan.agents if agent.device is not None}
    deadline = Deadline(config.resources.deadlines.sync_s, "sync_s", "to release its device")
    return {number: SharedDevice(number, is_gpu, deadline) for number, is_gpu in shared.items()}


def make_generator_group(
    config: Config,
    agent: int,
    placement: PlacementGroups,
    initialize: Initialize[GenerationActor],
    devices: Devices | None = None,
) -> GeneratorGroup:
    """Create the generator group of an agent's policy without starting it."""
    settings, agent_plan = config.agents[agent], placement.plan.agents[agent]
    device = (devices or {}).get(agent_plan.device)
    policy, on_gpu = config.policy_of(agent), agent_plan.generator_gpus > 0
    engine = EngineSpec(
        model=resolve_model(settings.name),
        dtype=wire_dtype(settings, on_gpu),
        max_length=config.model.max_length,
        trust_remote_code=config.model.model_kwargs.trust_remote_code,
        on_gpu=on_gpu,
        tensor_parallel=settings.generator.tensor_parallel,
        gpu_memory_utilization=settings.generator.gpu_memory_utilization,
        kv_cache_mb=settings.generator.kv_cache_mb,
        max_num_seqs=settings.generator.max_num_seqs,
        transport=agent_plan.transport,
        drain=config.rollout.inflight == "drain",
        colocated=device is not None,
    )
    is_local_model = Path(engine.model).is_dir()
    environment = engine_environment(settings.generator.cpus, on_gpu, is_local_model, config.output.verbose)
    options = {
        "num_cpus": settings.generator.cpus,
        "num_gpus": agent_plan.generator_gpus,
        "max_concurrency": MAX_CONCURRENT_CALLS,
        "runtime_env": {"env_vars": environment},
    }

    def spec(id: ActorId) -> ActorSpec[GenerationActor]:
        strategy = placement.strategy(id)
        return ActorSpec(id, GenerationActor, (id, engine, config.model), options | {"scheduling_strategy": strategy})

    async def reserve_replica(replica: int) -> ActorSpec[GenerationActor]:
        id = ActorId("generator", policy, replica)
        await placement.add(id, config.resources.deadlines.placement_s)
        return spec(id)

    return GeneratorGroup(
        [spec(ActorId("generator", policy, replica)) for replica in range(settings.generator.replicas)],
        settings.generator.tensor_parallel,
        config.resources.deadlines,
        initialize,
        settings.generator.max_restarts,
        device.lock_for_engine_start if device is not None and device.is_gpu else nullcontext,
        None if engine.transport == "ipc" or device else reserve_replica,
        placement.remove,
    )


def _make_learner_groups(
    config: Config, placement: PlacementGroups, optimizer_steps: int, devices: Devices
) -> list[LearnerGroup]:
    """Create one learner group per policy without starting them."""
    groups: dict[PolicyId, LearnerGroup] = {}
    deadlines = config.resources.deadlines
    for policies in config.learner_groups:
        first = policies[0]
        settings, agent_plan = config.agents[first.number].learner, placement.plan.agents[first.number]
        on_gpus = agent_plan.generator_gpus > 0
        arguments = {policy: learner_arguments(config, policy, on_gpus, optimizer_steps) for policy in policies}
        options = {
            "num_cpus": settings.cpus,
            "num_gpus": agent_plan.learner_gpus,
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(arguments[first].threads)}},
        }
        if len(policies) > 1:
            id = learner_id(config, first)
            process = SharedLearnerProcess(
                ActorSpec(
                    id, SharedLearner, (id, arguments), options | {"scheduling_strategy": placement.strategy(id)}
                ),
                deadlines,
                settings.max_restarts,
            )
            for policy in policies:
                view = partial(process.view, policy)
                groups[policy] = LearnerGroup(policy, view, 1, agent_plan.transport, deadlines)
            continue
        device = devices.get(agent_plan.device, DEDICATED)
        ids = [ActorId("learner", first, rank) for rank in range(settings.ranks)]
        specs = [
            ActorSpec(
                id,
                LearnerActor,
                (id, arguments[first], device.is_shared),
                options | {"scheduling_strategy": placement.strategy(id)},
            )
            for id in ids
        ]
        start_lock = device.lock_for_restore if agent_plan.learner_gpus else nullcontext
        supervise = supervise_ranks(specs, deadlines, settings.max_restarts, start_lock)
        groups[first] = LearnerGroup(first, supervise, len(specs), agent_plan.transport, deadlines, device)
    return [groups[policy] for policy in config.policies]


def make_sandbox_pool(config: Config, placement: PlacementGroups) -> SandboxPool:
    """Create the sandbox pool without starting it."""
    resources, deadlines = config.resources.sandbox, config.resources.deadlines
    return SandboxPool(
        sandbox_settings(config),
        resources.workers,
        num_cpus_per_worker=resources.cpus,
        start=Deadline(deadlines.start_s, "start_s", "to start"),
        restarts=resources.max_restarts,
        heartbeat_s=deadlines.heartbeat_s,
        scheduling=[placement.strategy(ActorId("sandbox", None, worker)) for worker in range(resources.workers)],
    )
