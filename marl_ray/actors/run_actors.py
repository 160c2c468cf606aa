"""All actors of a run or of an evaluation, created from the config."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ray

from marl_ray.actors.generation_actor import GenerationActor
from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.handle import Deadline, Handle
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.make_groups import (
    EngineLimits,
    make_devices,
    make_generator_group,
    make_learner_groups,
    make_sandbox_pool,
    make_shared_generator_groups,
)
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.actors.shared_device import DividedGpus, SharedDevice
from marl_ray.cluster.hardware import NodeSpec, cluster_nodes
from marl_ray.cluster.memory_estimate import engine_batch
from marl_ray.cluster.placement_group import PlacementGroups, reserve
from marl_ray.cluster.placement_plan import (
    generator_plan,
    make_plan,
    sandbox_plan,
)
from marl_ray.cluster.residency import share_gpus_of_evaluation
from marl_ray.cluster.sequences import sequences_in_flight
from marl_ray.config import Config
from marl_ray.config.resource_sections import ResourcesConfig
from marl_ray.config.sections import SandboxConfig
from marl_ray.core.concurrency import gather, now, run_with_background
from marl_ray.core.ids import PolicyId
from marl_ray.telemetry.logs import progress_bar_disabled, tqdm
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.timing import StartupTimer

logger = logging.getLogger(__name__)

STARTUP_PARTS: dict[type[Any], str] = {GeneratorGroup: "generators", LearnerGroup: "learners", SandboxPool: "sandbox"}
PROGRESS_INTERVAL_S = 0.5
"""Time between two counts of the started actors."""
TRANSPORTS = {
    "store": "Ray's object store",
    "nccl": "NCCL",
    "ipc": "CUDA IPC",
    "adapter": "Ray's object store (adapters only)",
}
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
        names = {learner.transport for learner in self.learners}
        return " and ".join(TRANSPORTS[name] for name in sorted(names))

    def learner_of(self, agent: int) -> LearnerGroup:
        """Return the learner group of the agent's policy."""
        return next(learner for learner in self.learners if agent in learner.policy.agents)

    def pop_memory_metrics(self, step: int) -> MetricRow:
        """Remove and return the memory metrics of all shared devices in a step."""
        metrics: MetricRow = {}
        for device in self.devices:
            metrics |= device.pop_memory_metrics(step)
        return metrics

    def take_queue_metrics(self) -> MetricRow:
        """Return the greatest depth of each queue since the last call."""
        metrics: MetricRow = {"sandbox/pending_max": self.sandbox.most_pending.take()}
        for learner in self.learners:
            group = self.generators[learner.policy.first_agent]
            metrics[f"{learner.policy.key}/sequences_in_flight_max"] = group.most_in_flight.take()
        return metrics

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
    nodes: Sequence[NodeSpec] | None = None,
) -> RunActors:
    """Create all actors of a run, and wait until they have started.

    `optimizer_steps` is the length of the learners' schedules, and `kv_cache_bytes` the size of the KV caches of
    engines that share GPUs, by policy. `nodes` are the nodes of the cluster; None: Ray is asked. Raises UserError
    before any actor is created if the cluster lacks the resources, and the error of an actor that does not start.
    """
    plan = make_plan(config.agents, config.lora, config.resources, _cluster_has_gpus())
    if startup is None:
        startup = StartupTimer()
    # All resources are reserved at once: a run with a part of its actors would hold them for nothing.
    with startup.part("placement"):
        placement = await reserve(plan, config.resources.deadlines.placement_s)
    devices = make_devices(config.policies, config.resources.deadlines, plan, kv_cache_bytes)
    learners = make_learner_groups(config, placement, optimizer_steps, devices)
    initialize = {learner.policy: learner.initialize_generator for learner in learners}
    if nodes is None:
        nodes = cluster_nodes()
    # Ray may place an engine on any node, so the smallest GPU decides on the size of its batch.
    gpu_memory = min((node.device_memory for node in nodes if node.gpus), default=0.0)
    groups: dict[PolicyId, GeneratorGroup] = {}
    for policies in config.generator_groups:
        first = policies[0]
        settings = config.agents[first.first_agent].generator
        in_flight = sequences_in_flight(config.training, config.environment, config.agents, policies)
        sequences, _ = engine_batch(settings, gpu_memory, in_flight)
        limits = EngineLimits(sequences, kv_cache_bytes.get(first))
        if len(policies) == 1:
            group = make_generator_group(config, first.first_agent, placement, initialize[first], devices, limits)
            groups[first] = group
        else:
            initialize_each = {policy: initialize[policy] for policy in policies}
            groups |= make_shared_generator_groups(config, initialize_each, placement, devices, limits)
    generators = [groups[config.policy_of(agent)] for agent in range(config.num_agents)]
    sandbox = make_sandbox_pool(config.sandbox, config.resources, placement)
    used_in_turns = [device for device in dict.fromkeys(devices.values()) if isinstance(device, SharedDevice)]
    actors = RunActors(generators, learners, sandbox, placement, used_in_turns)

    async def start(group: ActorGroup) -> list[str]:
        with startup.part(STARTUP_PARTS[type(group)]):
            return await group.start()

    try:
        for notes in await run_with_background(gather(*map(start, actors.groups)), _show_progress(config, actors)):
            for note in notes:
                logger.info(note)
    except BaseException:  # also after a signal, which cancels the start
        await actors.close()
        raise
    return actors


async def _show_progress(config: Config, actors: RunActors) -> None:
    """Count the started actors on a terminal until cancelled; elsewhere, return."""
    learners = 0
    for policy in config.policies:
        learners += config.agents[policy.first_agent].learner.ranks
    started = now()
    with tqdm(bar_format="{desc}", leave=False, file=sys.stderr, disable=progress_bar_disabled()) as line:
        while not line.disable:
            generators = 0
            serving_generators = 0
            for group in dict.fromkeys(actors.generators):
                generators += group.size
                serving_generators += len(group.replicas.serving())
            serving_learners = 0
            for learner in actors.learners:
                serving_learners += len(learner.ranks.serving())
            workers = f"{len(actors.sandbox.workers.serving())}/{config.resources.sandbox.workers}"
            line.set_description_str(
                f"generators {serving_generators}/{generators}, learners {serving_learners}/{learners}, "
                f"sandbox workers {workers}, {now() - started:.0f} s"
            )
            await asyncio.sleep(PROGRESS_INTERVAL_S)


def _cluster_has_gpus() -> bool:
    return ray.cluster_resources().get("GPU", 0) > 0


class EvaluationActors:
    """Generators of the models that are evaluated at present, and sandbox workers for the whole evaluation. At most one
    generator group per agent exists at any time, so an evaluation needs no more resources than a run."""

    def __init__(self, resources: ResourcesConfig, sandbox: SandboxConfig) -> None:
        self._resources = resources
        self._sandbox = sandbox
        self._logged: set[str] = set()
        self._groups: dict[Hashable, tuple[GeneratorGroup, PlacementGroups]] = {}
        self._placement: PlacementGroups | None = None
        release = Deadline(resources.deadlines.sync_s, "sync_s", "to release its device")
        self._divided_gpus = DividedGpus(release)
        self.sandbox: SandboxPool

    async def start(self) -> None:
        """Start the sandbox workers. Raises UserError if the cluster lacks the resources or the required isolation."""
        deadline_s = self._resources.deadlines.placement_s
        self._placement = await reserve(sandbox_plan(self._resources.sandbox), deadline_s)
        self.sandbox = make_sandbox_pool(self._sandbox, self._resources, self._placement)
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
        """By agent, everything that distinguishes its generators."""
        for agent, config in enumerate(configs):
            settings = config.agents[agent]
            keys.append((settings.name, settings.dtype, settings.generator, config.model.use_chat_template))
        # Old groups end first: both at once would need more resources than a run.
        for key in self._groups.keys() - keys:
            await _close(*self._groups.pop(key))
        new_keys = set(keys) - self._groups.keys()
        starts = []
        for key in sorted(new_keys, key=keys.index):
            agent = keys.index(key)  # the first of the agents that share the group
            starts.append(self._start_group(key, configs[agent], agent))
        await gather(*starts)
        return [self._groups[key][0] for key in keys]

    async def close(self) -> None:
        """End all actors and release their resources."""
        for group, placement in self._groups.values():
            await _close(group, placement)
        if self._placement is not None:
            await _close(self.sandbox, self._placement)

    async def _start_group(self, key: Hashable, config: Config, agent: int) -> None:
        policy = config.policy_of(agent)
        plan = generator_plan(config.agents, config.resources, policy, _cluster_has_gpus())
        deadlines = config.resources.deadlines
        deadline = Deadline(deadlines.sync_s, "sync_s", "to serve its weights")

        async def initialize(replica: Handle[GenerationActor]) -> None:
            await replica.call(GenerationActor.serve_initial_weights, 0).within(deadline)

        placement = await reserve(plan, deadlines.placement_s)
        devices = {}
        if 0 < plan.agents[agent].generator_gpus < 1:
            devices[policy] = self._divided_gpus  # on which engines start one at a time
        limits = EngineLimits(config.agents[agent].generator.max_num_seqs)
        group = make_generator_group(config, agent, placement, initialize, devices, limits)
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
