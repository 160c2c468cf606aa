"""Creation of each group of actors from the config and the placement, before any of them starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marl_ray.actors.engine_arguments import EngineSpec
from marl_ray.actors.engine_environment import engine_environment
from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup, generator_restarts
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_environment import learner_environment
from marl_ray.actors.learner_group import REMEDY, LearnerGroup
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.actors.shared_device import DEDICATED, DedicatedDevice, DividedGpus, SharedDevice
from marl_ray.actors.shared_generator import SharedGenerator, SharedGeneratorProcesses
from marl_ray.actors.shared_learner import SharedLearner, SharedLearnerProcess
from marl_ray.actors.supervisor import ActorSpec, Initialize, RestartLimits, Supervisor
from marl_ray.cluster.placement_group import PlacementGroups
from marl_ray.cluster.placement_plan import PlacementPlan, shared_learner_id
from marl_ray.config import Config, Deadlines
from marl_ray.config.resource_sections import ResourcesConfig, takes_turns
from marl_ray.config.sections import SandboxConfig
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import learner_arguments, wire_dtype
from marl_ray.models.names import resolve_model

Devices = Mapping[PolicyId, DedicatedDevice]
"""Devices of generators and learners by policy."""


def make_devices(
    policies: Sequence[PolicyId],
    deadlines: Deadlines,
    plan: PlacementPlan,
    kv_cache_bytes: Mapping[PolicyId, int] = MappingProxyType({}),
) -> Devices:
    """Return the device of each policy: used in turns with `resources.colocate`, divided with fractions of a GPU and
    with `resident`. `kv_cache_bytes` has the engines whose memory vLLM need not measure."""
    measures = not all(policy in kv_cache_bytes for policy in policies)
    release = Deadline(deadlines.sync_s, "sync_s", "to release its device")
    divided = DividedGpus(release)
    by_number: dict[int, SharedDevice] = {}
    devices: dict[PolicyId, DedicatedDevice] = {}
    for policy in policies:
        agent = plan.agents[policy.first_agent]
        if agent.device is not None and takes_turns(plan.residency):
            if agent.device not in by_number:
                is_gpu = agent.generator_gpus > 0
                by_number[agent.device] = SharedDevice(agent.device, is_gpu, release, plan.residency, measures)
            devices[policy] = by_number[agent.device]
        elif agent.shares_gpu and measures:
            devices[policy] = divided
        else:
            devices[policy] = DEDICATED
    return devices


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of a policy's engines on GPUs: sequences at a time, and bytes of the KV cache; None: vLLM's default."""

    sequences: int | None
    kv_cache_bytes: int | None = None


def make_generator_group(
    config: Config,
    agent: int,
    placement: PlacementGroups,
    initialize: Initialize[GenerationActor],
    devices: Devices,
    limits: EngineLimits,
) -> GeneratorGroup:
    settings = config.agents[agent].generator
    agent_plan = placement.plan.agents[agent]
    policy = config.policy_of(agent)
    device = devices.get(policy, DEDICATED)
    engine, options = _engine_settings(config, policy, placement, limits)

    def spec(id: ActorId) -> ActorSpec[GenerationActor]:
        arguments = (id, engine, config.model, placement.shared_gpus(id))
        return ActorSpec(id, GenerationActor, arguments, options | {"scheduling_strategy": placement.strategy(id)})

    async def reserve_replica(replica: int) -> ActorSpec[GenerationActor]:
        id = ActorId("generator", policy, replica)
        await placement.add(id, config.resources.deadlines.placement_s)
        return spec(id)

    # The bundles of a GPU that engine and learner share are fixed.
    can_grow = not agent_plan.divides_gpu and agent_plan.device is None
    return GeneratorGroup(
        [spec(ActorId("generator", policy, replica)) for replica in range(settings.replicas)],
        settings.tensor_parallel,
        config.resources.deadlines,
        initialize,
        settings.max_restarts,
        device.lock_for_engine_start,
        reserve_replica if can_grow else None,
        placement.remove,
        drains=config.training.inflight == "drain",
    )


def make_shared_generator_groups(
    config: Config,
    initialize: Mapping[PolicyId, Initialize[GenerationActor]],
    placement: PlacementGroups,
    devices: Devices,
    limits: EngineLimits,
) -> dict[PolicyId, GeneratorGroup]:
    """Return groups with one view each of the same processes, for the policies in `initialize`."""
    first = next(iter(initialize))
    settings = config.agents[first.first_agent].generator
    deadlines = config.resources.deadlines
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
    agent = config.agents[policy.first_agent]
    agent_plan = placement.plan.agents[policy.first_agent]
    settings = agent.generator
    on_gpu = agent_plan.generator_gpus > 0
    # The limit of sequences is for GPUs; on a CPU `engine_arguments` has a default.
    engine = EngineSpec(
        model=resolve_model(agent.name),
        dtype=wire_dtype(agent, on_gpu),
        max_length=config.model.max_length,
        trust_remote_code=config.model.model_kwargs.trust_remote_code,
        on_gpu=on_gpu,
        tensor_parallel=settings.tensor_parallel,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_mb=settings.kv_cache_mb,
        max_num_seqs=limits.sequences if on_gpu else settings.max_num_seqs,
        transport=agent_plan.transport,
        residency=placement.plan.residency,
        kv_cache_bytes=limits.kv_cache_bytes,
        lora=config.lora if agent_plan.transport == "adapter" else None,
        adapters=adapters,
    )
    is_local = Path(engine.model).is_dir()
    environment = engine_environment(settings.cpus, on_gpu, is_local, config.output.verbose)
    # On a shared device the plan and not Ray decides on the GPUs (`BundleGpus`).
    is_placed_by_ray = agent_plan.device is None
    options = {
        "num_cpus": settings.cpus,
        "num_gpus": agent_plan.generator_gpus if is_placed_by_ray else 0,
        "max_concurrency": 100_000,  # Ray's default is 1000, but the engine has its own queue
        "runtime_env": {"env_vars": environment},
    }
    return engine, options


def make_learner_groups(
    config: Config, placement: PlacementGroups, optimizer_steps: int, devices: Devices
) -> list[LearnerGroup]:
    groups: dict[PolicyId, LearnerGroup] = {}
    deadlines = config.resources.deadlines
    for policies in config.learner_groups:
        first = policies[0]
        settings = config.agents[first.first_agent].learner
        agent_plan = placement.plan.agents[first.first_agent]
        on_gpus = agent_plan.generator_gpus > 0
        arguments = {policy: learner_arguments(config, policy, optimizer_steps, on_gpus) for policy in policies}
        options = {
            "num_cpus": settings.cpus,
            # On a shared device the plan and not Ray decides on the GPUs (`BundleGpus`).
            "num_gpus": agent_plan.learner_gpus if agent_plan.device is None else 0,
            "runtime_env": {"env_vars": learner_environment(arguments[first].threads, agent_plan)},
        }
        start = Deadline(deadlines.start_s, "start_s", "to start")
        restarts = RestartLimits(start, settings.max_restarts, deadlines.heartbeat_s, REMEDY)
        if len(policies) > 1:
            # One process with one rank, in which all policies have the learner of the first one as their base.
            id = shared_learner_id(policies)
            placed = options | {"scheduling_strategy": placement.strategy(id)}
            spec = ActorSpec(id, SharedLearner, (id, arguments, placement.shared_gpus(id)), placed)
            process = SharedLearnerProcess(spec, restarts, devices[first].lock_for_learner_start)
            for policy in policies:
                view = partial(process.view, policy)
                transport = placement.plan.agents[policy.first_agent].transport
                groups[policy] = LearnerGroup(policy, view, 1, transport, deadlines, devices[policy])
            continue
        device = devices[first]
        ranks = []
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


def make_sandbox_pool(sandbox: SandboxConfig, resources: ResourcesConfig, placement: PlacementGroups) -> SandboxPool:
    settings = resources.sandbox
    deadlines = resources.deadlines
    workers = [ActorId("sandbox", None, worker) for worker in range(settings.workers)]
    return SandboxPool(
        sandbox_settings(sandbox),
        settings.workers,
        num_cpus_per_worker=settings.cpus,
        start=Deadline(deadlines.start_s, "start_s", "to start"),
        restarts=settings.max_restarts,
        heartbeat_s=deadlines.heartbeat_s,
        scheduling=list(map(placement.strategy, workers)),
    )
