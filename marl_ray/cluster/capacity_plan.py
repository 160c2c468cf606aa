"""The capacity plan of a run, made before anything starts: memory and node of each actor, and shortages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_ray.cluster.bundles import ROUNDING, pack
from marl_ray.cluster.hardware import NodeSpec, gib, total_gpus
from marl_ray.cluster.memory_estimate import (
    SANDBOX_PROCESS,
    MemoryEstimate,
    ModelInfo,
    ProfilingFailed,
    estimate_generator_memory,
    estimate_learner_memory,
)
from marl_ray.cluster.placement_plan import PlacementPlan, make_plan
from marl_ray.cluster.sequences import sequences_in_flight
from marl_ray.config import AgentConfig, Config, LoraConfig
from marl_ray.config.resource_sections import Residency, takes_turns
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import wire_dtype

ModelInfos = Mapping[str, ModelInfo]
"""Models with a readable configuration, by name."""
RAY_PROCESSES = 450e6
"""Memory of Ray's processes on the head node."""
DRIVER_PROCESS = 400e6
"""Memory of the driver."""
FRAGMENTED = 0.06
"""Share of a GPU that a learner cannot use: micro-batches have new shapes in each step, so that PyTorch's allocator
keeps blocks that fit none of them. An assumption."""


class UnknownModel(UserError):
    """A model whose configuration cannot be read."""


@dataclass(frozen=True, slots=True)
class ActorPlacement:
    """Node and GPUs of one actor. `memory` is None if its model is unknown."""

    id: ActorId
    memory: MemoryEstimate | None
    node: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Placement of all actors on the nodes. `placed` is None if the nodes lack the requested CPUs or GPUs."""

    nodes: Sequence[NodeSpec]
    plan: PlacementPlan
    placed: tuple[ActorPlacement, ...] | None

    @property
    def is_known(self) -> bool:
        """Whether all actors have a place and an estimate of their memory."""
        return self.placed is not None and all(actor.memory is not None for actor in self.placed)

    def host_memory(self, node: int) -> float:
        """Return the bytes used on a node. Weights in the object store count once per policy."""
        total = 0.0
        if node == 0:
            total = RAY_PROCESSES + DRIVER_PROCESS
        stored: dict[PolicyId | None, float] = {}
        for actor in self.placed or ():
            if actor.node == node and actor.memory is not None:
                weights = actor.memory.host.get("object store", 0.0)
                stored[actor.id.policy] = max(stored.get(actor.id.policy, 0.0), weights)
                total += actor.memory.host_total - weights
        return total + sum(stored.values())

    def actors_on(self, node: int, gpu: int) -> list[ActorPlacement]:
        """Return the actors that use one GPU."""
        return [actor for actor in self.placed or () if actor.node == node and gpu in actor.gpus]

    def gpu_memory(self, node: int, number: int) -> float:
        """Return the maximum bytes used on one GPU: what stays there, and what either all engines or one learner have
        there in turns."""
        staying = 0.0
        engines = 0.0
        largest_learner = 0.0
        for actor in self.actors_on(node, number):
            if actor.memory is None:
                continue
            device = actor.memory.device
            stays = _staying(device, actor.id.kind, self.plan.residency)
            in_turns = sum(device.values()) - stays
            staying += stays
            if actor.id.kind == "generator":
                engines += in_turns
            else:
                largest_learner = max(largest_learner, in_turns)
        return staying + max(engines, largest_learner)

    @property
    def shortages(self) -> list[tuple[str, float]]:
        """One line per node, GPU or KV cache that is too small, with the number of missing bytes."""
        if not self.placed:
            return []
        shortages = []
        for index, node in enumerate(self.nodes):
            need = self.host_memory(index)
            if need > node.memory:
                line = f"{node.name} has {gib(node.memory)} of memory, and {gib(need)} are needed"
                shortages.append((line, need - node.memory))
            for gpu in range(node.gpus):
                shortages += self._gpu_shortage(index, gpu)
        for actor in self.placed:
            if actor.memory is None:
                continue
            # An engine's cache is the rest of its share of the GPU, which is negative if the share is too small.
            cache = actor.memory.device.get("KV cache")
            if cache is not None and cache <= 0:
                line = f"{actor.id} has no memory left for its KV cache: {gib(-cache)} more are needed"
                shortages.append((line, -cache))
        return shortages

    def _gpu_shortage(self, index: int, gpu: int) -> list[tuple[str, float]]:
        """Return the shortage of a GPU of node number `index`, if there is one."""
        node = self.nodes[index]
        has = f"{node.name} GPU {gpu} has {gib(node.device_memory)}"
        usable = node.device_memory
        actors = self.actors_on(index, gpu)
        if any(actor.id.kind == "learner" for actor in actors):
            usable *= 1.0 - FRAGMENTED
            has += f" ({FRAGMENTED:.0%} stay free for a learner)"
        need = self.gpu_memory(index, gpu)
        if need <= usable:
            return []
        names = " and ".join(str(actor.id) for actor in actors)
        verb = "need" if len(actors) > 1 else "needs"
        return [(f"{has}, and {names} {verb} {gib(need)}", need - usable)]

    @property
    def missing_bytes(self) -> float:
        """Missing bytes over all nodes, GPUs and KV caches; infinite if the actors cannot be placed."""
        if self.placed is None:
            return math.inf
        return sum(missing for _, missing in self.shortages)


def _staying(device: Mapping[str, float], kind: str, residency: Residency | None) -> float:
    """Return the bytes of an actor that stay on its GPU while other actors use it."""
    if not takes_turns(residency):
        return sum(device.values())
    parts = ["CUDA", "graphs"]
    if kind == "learner":
        parts.append("buffers")  # the slab of weight updates
    if residency != "turns":
        # An engine keeps everything but its KV cache, and a learner its state. Working memory is released.
        if kind == "generator":
            parts += ["weights", "activations", "logits"]
        else:
            parts += ["weights", "reference", "critic"]
    if residency == "kv" and kind == "learner":
        parts.append("optimizer")
    return sum(device.get(part, 0.0) for part in parts)


def plan_capacity(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> CapacityPlan:
    """Return the capacity plan of a run on these nodes. Raises PlacementError like `make_plan`."""
    plan = make_plan(config.agents, config.lora, config.resources, cluster_has_gpus=total_gpus(nodes) > 0)
    assignment = pack(plan.bundles, [node.resources for node in nodes])
    if assignment is None:
        return CapacityPlan(nodes, plan, None)
    free = [[1.0] * node.gpus for node in nodes]
    """Free share of each GPU, by node."""
    placed = []
    for bundle, node in zip(plan.bundles, assignment, strict=True):
        bundle_gpus = _allocate_gpus(free[node], bundle.gpus)
        for actor in bundle.actors:
            memory = estimate_actor_memory(config, models, plan, actor, nodes[node])
            gpus = bundle_gpus
            if actor in plan.shared_gpus:
                gpus = tuple(bundle_gpus[index] for index in plan.shared_gpus[actor])
            placed.append(ActorPlacement(actor, memory, node, gpus))
    return CapacityPlan(nodes, plan, tuple(placed))


def _allocate_gpus(free: list[float], amount: float) -> tuple[int, ...]:
    """Take whole GPUs, or a fraction of one, from the free shares. Returns their numbers."""
    share = min(amount, 1.0)  # of each GPU
    numbers: list[int] = []
    for number in range(len(free)):
        if len(numbers) < math.ceil(amount) and free[number] + ROUNDING >= share:
            free[number] -= share
            numbers.append(number)
    return tuple(numbers)


def estimate_actor_memory(
    config: Config, models: ModelInfos, plan: PlacementPlan, actor: ActorId, node: NodeSpec
) -> MemoryEstimate | None:
    """Return the memory of one actor on a node; None if its model is unknown or cannot be profiled."""
    if actor.kind == "sandbox":
        return MemoryEstimate({"process": SANDBOX_PROCESS, "programs": config.sandbox.memory_mb * 2.0**20}, {})
    number = actor.first_agent
    agent = config.agents[number]
    policy = config.policy_of(number)
    model = models.get(agent.name)
    if model is None:
        return None
    placement = plan.agents[number]
    on_gpu = placement.generator_gpus > 0
    training = config.training
    lora = config.lora
    try:
        if actor.kind == "learner":
            size = model.learner(training, lora, agent, on_gpu)
            policies = config.learner_policies(policy)
            references = 0
            for learned in policies:
                agents = [config.agents[member] for member in learned.agents]
                references += reference_parameters(agents, models, size.parameters, lora)
            rank = 0 if actor.policy is None else actor.replica
            return estimate_learner_memory(
                size, agent, training, lora, placement, plan.residency, len(policies), rank, references
            )
        served = config.generator_policies(policy)
        gpu_memory = 0.0
        in_flight = None
        if on_gpu:
            if node.device is None:
                return None  # a GPU of unknown size
            gpu_memory = node.device.memory
            in_flight = sequences_in_flight(training, config.environment, config.agents, served)
        adapters = 0.0
        if placement.transport == "adapter":
            adapters = float(len(served) * model.learner(training, lora, agent, on_gpu).trained)
    except (ProfilingFailed, UnknownModel):
        return None
    return estimate_generator_memory(
        model,
        agent,
        config.model.max_length,
        gpu_memory,
        wire_dtype(agent, on_gpu),
        placement.transport,
        in_flight,
        placement.shares_gpu,
        adapters,
    )


def engine_cache_bytes(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> dict[PolicyId, int]:
    """Return the size of the KV cache of each policy's engines that share their GPUs with other actors, in bytes on
    each GPU. Policies of unknown models, or on GPUs of unknown memory, are left out."""
    with_gpus = [node for node in nodes if node.gpus]
    plan = make_plan(config.agents, config.lora, config.resources, cluster_has_gpus=bool(with_gpus))
    sizes = {}
    for policy in config.policies:
        if not plan.agents[policy.first_agent].shares_gpu:
            continue
        engine = ActorId("generator", policy, 0)
        caches = []
        for node in with_gpus:
            estimate = estimate_actor_memory(config, models, plan, engine, node)
            if estimate is not None:
                caches.append(estimate.device["KV cache"])
        # The engine may be on any of the nodes, so its cache fits on all of them.
        if len(caches) == len(with_gpus) and min(caches) > 0:
            sizes[policy] = int(min(caches))
    return sizes


def reference_parameters(agents: Sequence[AgentConfig], models: ModelInfos, initial: int, lora: LoraConfig) -> int:
    """Return the number of parameters of the reference models of a policy with these agents. `initial` is the number of
    its initial model, which with LoRA is in memory anyway. Raises UnknownModel."""
    reference_names = set()
    for agent in agents:
        if agent.reference_kl_coef:
            reference_names.add(agent.reference_model or agent.name)
    total = 0
    for name in reference_names:
        if name == agents[0].name:
            # With LoRA the initial model is the learner's own, without its adapter.
            total += 0 if lora.rank else initial
        elif name in models:
            total += models[name].parameters
        else:
            raise UnknownModel(f"the size of the reference model {name} is not known")
    return total
