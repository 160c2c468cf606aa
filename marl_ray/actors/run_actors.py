"""All actors of a run or of an evaluation, created from the config."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray

from marl_ray.actors.engine_arguments import EngineSpec
from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup, generator_restarts
from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_environment import learner_environment
from marl_ray.actors.learner_group import REMEDY, LearnerGroup
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.actors.shared_device import DEDICATED, DedicatedDevice, DividedGpus, SharedDevice
from marl_ray.actors.shared_generator import SharedGenerator, SharedGeneratorProcesses
from marl_ray.actors.shared_learner import SharedLearner, SharedLearnerProcess
from marl_ray.actors.supervisor import ActorSpec, Initialize, RestartPolicy, Supervisor
from marl_ray.cluster.hardware import cluster_nodes
from marl_ray.cluster.memory_estimate import engine_batch
from marl_ray.cluster.placement_group import PlacementGroups, reserve
from marl_ray.cluster.placement_plan import (
    PlacementPlan,
    generator_plan,
    learner_id,
    make_plan,
    sandbox_plan,
)
from marl_ray.cluster.residency import share_gpus_of_evaluation
from marl_ray.config import Config
from marl_ray.config.budget import sequences_in_flight
from marl_ray.config.resource_sections import takes_turns
from marl_ray.core.concurrency import gather
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import learner_arguments, wire_dtype
from marl_ray.models.names import resolve_model
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.timing import StartupTimer

logger = logging.getLogger(__name__)

STARTUP_PARTS: dict[type[Any], str] = {GeneratorGroup: "generators", LearnerGroup: "learners", SandboxPool: "sandbox"}
TRANSPORTS = {
    "store": "Ray's object store",
    "nccl": "NCCL",
    "ipc": "CUDA IPC",
    "adapter": "Ray's object store (adapters only)",
}
Devices = Mapping[PolicyId, DedicatedDevice]
"""Devices of generators and learners by policy."""
ActorGroup = GeneratorGroup | LearnerGroup | SandboxPool


@dataclass(frozen=True, slots=True)
class RunActors:
    """The actors of a run: one generator group per agent, which agents of one policy share, one learner group per
    policy and the sandbox pool."""

    generators: list[GeneratorGroup]
    learners: list[LearnerGroup]
    sandbox: SandboxPool
    placement: PlacementGroups
    devices: Sequence[SharedDevice] = ()

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


async def start_actors(
    config: Config,
    optimizer_steps: int,
    startup: StartupTimer | None = None,
    kv_cache_bytes: Mapping[PolicyId, int] = MappingProxyType({}),
) -> RunActors:
    """Create all actors of a run, and wait until they have started.

    `optimizer_steps` is the length of the learners' schedules, and `kv_cache_bytes` the size of the KV caches of
    engines that share GPUs, by policy. Raises UserError before any actor is created if the cluster lacks the resources,
    and the error of an actor that does not start.
    """
    plan = make_plan(config, cluster_has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
    startup = StartupTimer() if startup is None else startup
    with startup.part("placement"):
        placement = await reserve(plan, config.resources.deadlines.placement_s)
    devices = make_devices(config, plan, kv_cache_bytes)
    learners = _make_learner_groups(config, placement, optimizer_steps, devices)
    groups: dict[PolicyId, GeneratorGroup] = {}
    gpu_memory = min((node.device_memory for node in cluster_nodes() if node.gpus), default=0.0)
    initialize = {learner.policy: learner.initialize_generator for learner in learners}
    for policies in config.generator_groups:
        first, *others = policies
        settings = config.agents[first.number].generator
        sequences, _ = engine_batch(settings, gpu_memory, sequences_in_flight(config, first))
        limits = EngineLimits(sequences, kv_cache_bytes.get(first))
        if others:
            own = {policy: initialize[policy] for policy in policies}
            groups |= _make_shared_generator_groups(config, own, placement, devices, limits)
        else:
            own_number, own_initialize = first.number, initialize[first]
            groups[first] = _make_generator_group(config, own_number, placement, own_initialize, devices, limits)
    generators = [groups[config.policy_of(agent)] for agent in range(config.num_agents)]
    sandbox = _make_sandbox_pool(config, placement)
    shared = [device for device in dict.fromkeys(devices.values()) if isinstance(device, SharedDevice)]
    actors = RunActors(generators, learners, sandbox, placement, shared)

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


def make_devices(
    config: Config, plan: PlacementPlan, kv_cache_bytes: Mapping[PolicyId, int] = MappingProxyType({})
) -> Devices:
    """Return the device of each policy: used in turns with `resources.colocate`, divided with fractions of a GPU and
    with `resident`. `kv_cache_bytes` has the engines whose memory vLLM need not measure."""
    measures = not all(policy in kv_cache_bytes for policy in config.policies)
    release = Deadline(config.resources.deadlines.sync_s, "sync_s", "to release its device")
    divided, shared = DividedGpus(release), dict[int, SharedDevice]()
    devices: dict[PolicyId, DedicatedDevice] = {}
    for policy in config.policies:
        agent = plan.agents[policy.number]
        if agent.device is not None and takes_turns(plan.residency):
            device = SharedDevice(agent.device, agent.generator_gpus > 0, release, plan.residency, measures)
            devices[policy] = shared.setdefault(agent.device, device)
        else:
            devices[policy] = divided if agent.shares_gpu and measures else DEDICATED
    return devices


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of a policy's engines on GPUs: sequences at a time, and bytes of the KV cache; None: vLLM's default."""

    sequences: int | None
    kv_cache_bytes: int | None = None


def _make_generator_group(
    config: Config,
    agent: int,
    placement: PlacementGroups,
    initialize: Initialize[GenerationActor],
    devices: Devices,
    limits: EngineLimits,
) -> GeneratorGroup:
    settings, agent_plan, policy = config.agents[agent], placement.plan.agents[agent], config.policy_of(agent)
    device = devices.get(policy, DEDICATED)
    engine, options = _engine_settings(config, policy, placement, limits)

    def spec(id: ActorId) -> ActorSpec[GenerationActor]:
        arguments = (id, engine, config.model, placement.shared_gpus(id))
        return ActorSpec(id, GenerationActor, arguments, options | {"scheduling_strategy": placement.strategy(id)})

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
        device.lock_for_engine_start,
        None if agent_plan.divides_gpu or agent_plan.device is not None else reserve_replica,
        placement.remove,
        drains=config.rollout.inflight == "drain",
    )


def _make_shared_generator_groups(
    config: Config,
    initialize: Mapping[PolicyId, Initialize[GenerationActor]],
    placement: PlacementGroups,
    devices: Devices,
    limits: EngineLimits,
) -> dict[PolicyId, GeneratorGroup]:
    """Return groups with one view each of the same processes, for the policies in `initialize`."""
    first = next(iter(initialize))
    settings, deadlines = config.agents[first.number].generator, config.resources.deadlines
    device = devices.get(first, DEDICATED)
    engine, options = _engine_settings(config, first, placement, limits, adapters=len(initialize))
    specs: list[ActorSpec[Any]] = []
    for replica in range(settings.replicas):
        id = ActorId("generator", first, replica)
        arguments = (id, tuple(initialize), engine, config.model, placement.shared_gpus(id))
        placed = options | {"scheduling_strategy": placement.strategy(id)}
        specs.append(ActorSpec(id, SharedGenerator, arguments, placed))
    restarts = generator_restarts(deadlines, settings.max_restarts)
    processes = SharedGeneratorProcesses(specs, restarts, device.lock_for_engine_start)
    groups = {}
    for policy, initialize_policy in initialize.items():
        view = processes.view(policy, initialize_policy)
        groups[policy] = GeneratorGroup(specs, settings.tensor_parallel, deadlines, initialize_policy, view=view)
    return groups


def _engine_settings(
    config: Config, policy: PolicyId, placement: PlacementGroups, limits: EngineLimits, adapters: int = 1
) -> tuple[EngineSpec, dict[str, Any]]:
    """Return the engine of a policy's generators, and Ray's options of the actor without the placement."""
    settings, agent_plan = config.agents[policy.number], placement.plan.agents[policy.number]
    on_gpu = agent_plan.generator_gpus > 0
    is_placed = agent_plan.device is not None  # on GPUs of which the plan and not Ray decides
    engine = EngineSpec(
        model=resolve_model(settings.name),
        dtype=wire_dtype(settings, on_gpu),
        max_length=config.model.max_length,
        trust_remote_code=config.model.model_kwargs.trust_remote_code,
        on_gpu=on_gpu,
        tensor_parallel=settings.generator.tensor_parallel,
        gpu_memory_utilization=settings.generator.gpu_memory_utilization,
        kv_cache_mb=settings.generator.kv_cache_mb,
        max_num_seqs=limits.sequences if on_gpu else settings.generator.max_num_seqs,
        transport=agent_plan.transport,
        residency=placement.plan.residency,
        kv_cache_bytes=limits.kv_cache_bytes,
        lora=config.lora if agent_plan.transport == "adapter" else None,
        adapters=adapters,
    )
    is_local = Path(engine.model).is_dir()
    environment = engine_environment(settings.generator.cpus, on_gpu, is_local, config.output.verbose)
    options = {
        "num_cpus": settings.generator.cpus,
        "num_gpus": 0 if is_placed else agent_plan.generator_gpus,
        "max_concurrency": 100_000,  # Ray's default is 1000, but the engine has its own queue
        "runtime_env": {"env_vars": environment},
    }
    return engine, options


def _make_learner_groups(
    config: Config, placement: PlacementGroups, optimizer_steps: int, devices: Devices
) -> list[LearnerGroup]:
    groups: dict[PolicyId, LearnerGroup] = {}
    deadlines = config.resources.deadlines
    for policies in config.learner_groups:
        first = policies[0]
        settings, agent_plan = config.agents[first.number].learner, placement.plan.agents[first.number]
        on_gpus = agent_plan.generator_gpus > 0
        arguments = {policy: learner_arguments(config, policy, on_gpus, optimizer_steps) for policy in policies}
        options = {
            "num_cpus": settings.cpus,
            "num_gpus": agent_plan.learner_gpus if agent_plan.device is None else 0,
            "runtime_env": {"env_vars": learner_environment(arguments[first].threads, agent_plan)},
        }
        start = Deadline(deadlines.start_s, "start_s", "to start")
        restarts = RestartPolicy(start, settings.max_restarts, deadlines.heartbeat_s, REMEDY)
        if len(policies) > 1:
            id = learner_id(config, first)
            placed = options | {"scheduling_strategy": placement.strategy(id)}
            spec = ActorSpec(id, SharedLearner, (id, arguments, placement.shared_gpus(id)), placed)
            process = SharedLearnerProcess(spec, restarts, devices[first].lock_for_learner_start)
            for policy in policies:
                view = partial(process.view, policy)
                transport = placement.plan.agents[policy.number].transport
                groups[policy] = LearnerGroup(policy, view, 1, transport, deadlines, devices[policy])
            continue
        device, ranks = devices[first], []
        for rank in range(settings.ranks):
            id = ActorId("learner", first, rank)
            placed = options | {"scheduling_strategy": placement.strategy(id)}
            actor_arguments = (id, arguments[first], placement.plan.residency, placement.shared_gpus(id))
            ranks.append(ActorSpec(id, LearnerActor, actor_arguments, placed))
        # One of several ranks loads its model later, together with the others.
        start_lock = device.lock_for_learner_start if len(ranks) == 1 else nullcontext
        supervise = partial(Supervisor, ranks, restarts, start_lock=start_lock)
        groups[first] = LearnerGroup(first, supervise, len(ranks), agent_plan.transport, deadlines, device)
    return [groups[policy] for policy in config.policies]


def _make_sandbox_pool(config: Config, placement: PlacementGroups) -> SandboxPool:
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


class EvaluationActors:
    """Generators of the models that are evaluated at present, and sandbox workers for the whole evaluation. At most one
    generator group per agent exists at any time, so an evaluation needs no more resources than a run."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._logged: set[str] = set()
        self._groups: dict[Hashable, tuple[GeneratorGroup, PlacementGroups]] = {}
        self._placement: PlacementGroups | None = None
        release = Deadline(config.resources.deadlines.sync_s, "sync_s", "to release its device")
        self._divided_gpus = DividedGpus(release)
        self.sandbox: SandboxPool

    async def start(self) -> None:
        """Start the sandbox workers. Raises UserError if the cluster lacks the resources or the required isolation."""
        self._placement = await reserve(sandbox_plan(self._config), self._config.resources.deadlines.placement_s)
        self.sandbox = _make_sandbox_pool(self._config, self._placement)
        for note in await self.sandbox.start():
            logger.info(note)

    async def start_generators(self, configs: Sequence[Config]) -> list[GeneratorGroup]:
        """Return a generator group per agent for the model of the agent in `configs[agent]`.

        Agents with the same weights share a group. Existing groups are reused, and groups that are no longer needed are
        ended. Raises UserError if the cluster lacks the resources, and the error of a generator that does not start.
        """
        nodes = cluster_nodes()
        configs = [share_gpus_of_evaluation(config, nodes) for config in configs]
        keys: list[Hashable] = []
        for agent, config in enumerate(configs):
            settings = config.agents[agent]
            keys.append((settings.name, settings.dtype, settings.generator, config.model.use_chat_template))
        for key in self._groups.keys() - keys:
            await _close(*self._groups.pop(key))
        new = {key: keys.index(key) for key in keys if key not in self._groups}
        await gather(*(self._start_group(key, configs[agent], agent) for key, agent in new.items()))
        return [self._groups[key][0] for key in keys]

    async def close(self) -> None:
        """End all actors and release their resources."""
        for group, placement in self._groups.values():
            await _close(group, placement)
        if self._placement is not None:
            await _close(self.sandbox, self._placement)

    async def _start_group(self, key: Hashable, config: Config, agent: int) -> None:
        plan = generator_plan(config, agent, cluster_has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
        deadlines = config.resources.deadlines
        deadline = Deadline(deadlines.sync_s, "sync_s", "to serve its weights")

        async def initialize(replica: Handle[GenerationActor]) -> None:
            await replica.call(GenerationActor.serve_initial_weights, 0).within(deadline)

        placement = await reserve(plan, deadlines.placement_s)
        is_part = 0 < plan.agents[agent].generator_gpus < 1  # of a GPU, on which engines start one at a time
        devices = {config.policy_of(agent): self._divided_gpus} if is_part else {}
        max_num_seqs = config.agents[agent].generator.max_num_seqs
        group = _make_generator_group(config, agent, placement, initialize, devices, EngineLimits(max_num_seqs))
        try:
            notes = await group.start()
        except BaseException:
            await _close(group, placement)
            raise
        self._groups[key] = group, placement
        for note in notes:
            if note not in self._logged:
                self._logged.add(note)
                logger.info(note)


async def _close(group: ActorGroup, placement: PlacementGroups) -> None:
    await group.close()
    placement.release()
