"""The capacity plan of a run, made before anything starts: memory and node of each actor, shortages, and settings that
remove them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from marl_ray.cluster.hardware import NodeSpec, gib
from marl_ray.cluster.memory_estimate import (
    SANDBOX_PROCESS,
    MemoryEstimate,
    ModelInfo,
    ProfilingFailed,
    estimate_generator_memory,
    estimate_learner_memory,
)
from marl_ray.cluster.placement_plan import PlacementPlan, make_plan, pack
from marl_ray.config import Config
from marl_ray.config.budget import sequences_in_flight
from marl_ray.config.resource_sections import Residency, takes_turns
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import microbatch_tokens, wire_dtype

ModelInfos = Mapping[str, ModelInfo]
"""Models with a readable configuration, by name."""
RAY_PROCESSES, DRIVER_PROCESS = 450e6, 400e6
"""Memory of Ray's processes on the head node and of the driver."""
FRAGMENTED = 0.06
"""Share of a GPU that a learner cannot use: micro-batches have new shapes in each step, so that PyTorch's allocator
keeps blocks that fit none of them. An assumption."""


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

    def host_memory(self, node: int) -> float:
        """Return the bytes used on a node. Weights in the object store count once per policy."""
        stored: dict[PolicyId | None, float] = {}
        total = RAY_PROCESSES + DRIVER_PROCESS if node == 0 else 0.0
        for actor in self.placed or ():
            if actor.node == node and actor.memory is not None:
                weights = actor.memory.host.get("object store", 0.0)
                stored[actor.id.policy] = max(stored.get(actor.id.policy, 0.0), weights)
                total += actor.memory.host_total - weights
        return total + sum(stored.values())

    def gpu_memory(self, node: int, number: int) -> float:
        """Return the maximum bytes used on one GPU: what stays there, and what either all engines or one learner have
        there in turns."""
        actors = [actor for actor in self.placed or () if actor.node == node and number in actor.gpus]
        staying, engines, learners = 0.0, 0.0, [0.0]
        for actor in actors:
            if actor.memory is None:
                continue
            device = actor.memory.device
            stays = _staying(device, actor.id.kind, self.plan.residency)
            staying += stays
            if actor.id.kind == "generator":
                engines += sum(device.values()) - stays
            else:
                learners.append(sum(device.values()) - stays)
        return staying + max(engines, *learners)

    @property
    def shortages(self) -> list[tuple[str, float]]:
        """One line per node, GPU or KV cache that is too small, with the number of missing bytes."""
        shortages = []
        for index, node in enumerate(self.nodes if self.placed else ()):
            need = self.host_memory(index)
            if need > node.memory:
                line = f"{node.name} has {gib(node.memory)} of memory, and {gib(need)} are needed"
                shortages.append((line, need - node.memory))
            for number in range(node.gpus):
                need = self.gpu_memory(index, number)
                ids = [actor.id for actor in self.placed or () if actor.node == index and number in actor.gpus]
                learns = any(id.kind == "learner" for id in ids)
                usable = node.device_memory * (1.0 - FRAGMENTED if learns else 1.0)
                if need > usable:
                    has = f"{node.name} GPU {number} has {gib(node.device_memory)}"
                    has += f" ({FRAGMENTED:.0%} stay free for a learner)" if learns else ""
                    verb = "need" if len(ids) > 1 else "needs"
                    shortages.append((f"{has}, and {' and '.join(map(str, ids))} {verb} {gib(need)}", need - usable))
        for actor in self.placed or ():
            cache = actor.memory.device.get("KV cache", 1.0) if actor.memory else 1.0
            if cache <= 0:
                line = f"{actor.id} has no memory left for its KV cache: {gib(-cache)} more are needed"
                shortages.append((line, -cache))
        return shortages

    @property
    def missing_bytes(self) -> float:
        """Missing bytes over all nodes, GPUs and KV caches; infinite if the actors cannot be placed."""
        return math.inf if self.placed is None else sum(missing for _, missing in self.shortages)


def _staying(device: Mapping[str, float], kind: str, residency: Residency | None) -> float:
    """Return the bytes of an actor that stay on its GPU while other actors use it."""
    if not takes_turns(residency):
        return sum(device.values())
    parts = ["CUDA", "graphs"]
    if kind == "learner":
        parts.append("buffers")  # the slab of weight updates
    if residency != "turns":
        # An engine keeps everything but its KV cache, and a learner its state. Working memory is released.
        of_engine = ["weights", "activations", "logits"]
        of_learner = ["weights", "reference", "critic"]
        parts += of_engine if kind == "generator" else of_learner
    if residency == "kv" and kind == "learner":
        parts.append("optimizer")
    return sum(device.get(part, 0.0) for part in parts)


def plan_capacity(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> CapacityPlan:
    """Return the capacity plan of a run on these nodes. Raises PlacementError like `make_plan`."""
    plan = make_plan(config, cluster_has_gpus=any(node.gpus for node in nodes))
    assignment = pack(plan.bundles, [node.resources for node in nodes])
    if assignment is None:
        return CapacityPlan(nodes, plan, None)
    free = [[1.0] * node.gpus for node in nodes]
    placed = []
    for bundle, node in zip(plan.bundles, assignment, strict=True):
        gpus = _allocate_gpus(free[node], bundle.gpus)
        for actor in bundle.actors:
            memory = estimate_actor_memory(config, models, plan, actor, nodes[node])
            used = tuple(gpus[index] for index in plan.shared_gpus[actor]) if actor in plan.shared_gpus else gpus
            placed.append(ActorPlacement(actor, memory, node, used))
    return CapacityPlan(nodes, plan, tuple(placed))


def _allocate_gpus(free: list[float], amount: float) -> tuple[int, ...]:
    """Take whole GPUs, or a fraction of one, from the free shares. Returns their numbers."""
    if amount < 1:
        numbers = tuple(n for n, share in enumerate(free) if amount and share + 1e-9 >= amount)[:1]
    else:
        numbers = tuple(n for n, share in enumerate(free) if share == 1.0)[: math.ceil(amount)]
    for number in numbers:
        free[number] -= min(amount, 1.0)
    return numbers


def estimate_actor_memory(
    config: Config, models: ModelInfos, plan: PlacementPlan, actor: ActorId, node: NodeSpec
) -> MemoryEstimate | None:
    """Return the memory of one actor on a node; None if its model is unknown or cannot be profiled."""
    if actor.kind == "sandbox":
        return MemoryEstimate({"process": SANDBOX_PROCESS, "programs": config.sandbox.memory_mb * 2.0**20}, {})
    number = actor.replica if actor.policy is None else actor.policy.number
    agent, placement = config.agents[number], plan.agents[number]
    model = models.get(agent.name)
    if model is None:
        return None
    on_gpu, transport = placement.generator_gpus > 0, placement.transport
    wire = wire_dtype(agent, on_gpu)
    if actor.kind == "learner":
        policies = config.learner_policies(config.policy_of(number))
        try:
            size = model.learner(config, agent, on_gpu)
            references = sum(reference_parameters(config, models, size.parameters, policy) for policy in policies)
        except (ProfilingFailed, KeyError):
            return None
        rank = actor.replica if actor.policy else 0
        return estimate_learner_memory(size, config, agent, on_gpu, wire, transport, len(policies), rank, references)
    gpu_memory = node.device.memory if on_gpu and node.device else 0.0
    if on_gpu and not gpu_memory:
        return None
    in_flight = sequences_in_flight(config, config.policy_of(number)) if on_gpu else None
    adapters = 0.0
    if transport == "adapter":
        policies = config.generator_policies(config.policy_of(number))
        try:
            adapters = float(len(policies) * model.learner(config, agent, on_gpu).trained)
        except ProfilingFailed:
            return None
    shares, length = placement.shares_gpu, config.model.max_length
    return estimate_generator_memory(model, agent, length, gpu_memory, wire, transport, in_flight, shares, adapters)


def engine_cache_bytes(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> dict[PolicyId, int]:
    """Return the size of the KV cache of each policy's engines that share their GPUs with other actors, in bytes on
    each GPU. Policies of unknown models, or on GPUs of unknown memory, are left out."""
    with_gpus = [node for node in nodes if node.gpus]
    plan = make_plan(config, cluster_has_gpus=bool(with_gpus))
    sizes = {}
    for policy in config.policies:
        if not plan.agents[policy.number].shares_gpu:
            continue
        engine = ActorId("generator", policy, 0)
        estimates = [estimate_actor_memory(config, models, plan, engine, node) for node in with_gpus]
        caches = [estimate.device["KV cache"] for estimate in estimates if estimate is not None]
        if len(caches) == len(estimates) and min(caches) > 0:
            sizes[policy] = int(min(caches))
    return sizes


def reference_parameters(config: Config, models: ModelInfos, initial: int, policy: PolicyId) -> int:
    """Return the number of parameters of a policy's reference models, given that of its initial model, which with LoRA
    is in memory anyway. Raises KeyError for an unknown model."""
    agents = [config.agents[number] for number in policy.agents]
    names = {agent.reference_model or agent.name for agent in agents if agent.reference_kl_coef}
    own = 0 if config.lora.rank else initial
    return sum(own if name == agents[0].name else models[name].parameters for name in names)


Change = tuple[str, str, Callable[[Config], Config]]
"""A setting, its value, and a function that applies it to a config."""


def memory_savings(config: Config, gpus: int) -> list[Change]:
    """Return settings that save memory on a cluster with this number of GPUs: first settings that cost time or GPUs,
    then settings that change training."""
    has_gpus = gpus > 0
    optimizer, section, agents = config.optimizer, config.algorithm, config.agents
    changes: list[Change] = []
    smaller = [tokens for tokens in (2048, 512) if tokens < microbatch_tokens(config, has_gpus)]
    changes += [(f"{section}.microbatch_tokens", str(n), _set_optimizer(microbatch_tokens=n)) for n in smaller]
    if not optimizer.gradient_checkpointing:
        changes.append((f"{section}.gradient_checkpointing", "true", _set_optimizer(gradient_checkpointing=True)))
    if has_gpus and any(agent.reference_kl_coef and not agent.learner.offload_reference for agent in agents):
        changes.append(("resources.learner.offload_reference", "true", _set_agents("learner", offload_reference=True)))
    if not has_gpus and any(agent.generator.kv_cache_mb > 128 for agent in agents):
        changes.append(("resources.generator.kv_cache_mb", "128", _set_agents("generator", kv_cache_mb=128)))
    if any((agent.generator.max_num_seqs or 256) > 64 for agent in agents):
        changes.append(("resources.generator.max_num_seqs", "64", _set_agents("generator", max_num_seqs=64)))
    if has_gpus and any(agent.generator.tensor_parallel == 1 and agent.generator.gpus is None for agent in agents):
        changes.append(("resources.generator.tensor_parallel", "2", _set_agents("generator", tensor_parallel=2)))
    if has_gpus and config.resources.residency is None:
        ranks = max(agent.learner.ranks for agent in agents)
        larger = [2**power for power in range(1, gpus.bit_length()) if 2**power > ranks]
        changes += [("resources.learner.ranks", str(n), _set_agents("learner", ranks=n)) for n in larger]
        if not all(agent.learner.cpu_offload for agent in agents) and optimizer.optimizer == "adamw":
            changes.append(("resources.learner.cpu_offload", "true", _offload))
    for name in {"adamw": ("adamw_8bit", "adafactor"), "adamw_8bit": ("adafactor",)}.get(optimizer.optimizer, ()):
        changes.append((f"{section}.optimizer", name, _switch_optimizer(name)))
    if not config.lora.rank and not any(agent.learner.offload_reference for agent in agents):
        changes.append(("lora.rank", "16", lambda config: replace(config, lora=replace(config.lora, rank=16))))
    return changes


def _set_optimizer(**values: object) -> Callable[[Config], Config]:
    return lambda config: replace(config, optimizer=replace(config.optimizer, **values))  # type: ignore[arg-type]


def _switch_optimizer(name: str) -> Callable[[Config], Config]:
    """Return a change of the optimizer, which does nothing for 8-bit AdamW with several ranks (unsupported)."""

    def change(config: Config) -> Config:
        is_unsupported = name == "adamw_8bit" and any(agent.learner.ranks > 1 for agent in config.agents)
        return config if is_unsupported else _set_optimizer(optimizer=name)(config)

    return change


def _offload(config: Config) -> Config:
    """Offload the learners of several ranks to host memory; learners of one rank cannot be."""
    agents = (replace(a, learner=replace(a.learner, cpu_offload=a.learner.ranks > 1)) for a in config.agents)
    return replace(config, agents=tuple(agents))


def _set_agents(section: str, **values: object) -> Callable[[Config], Config]:
    """Return a change of `resources.<section>` for every agent."""

    def change(config: Config) -> Config:
        agents = (replace(a, **{section: replace(getattr(a, section), **values)}) for a in config.agents)
        return replace(config, agents=tuple(agents))

    return change


def suggest_settings(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> tuple[list[str], bool]:
    """Return settings that make the run fit, applied one after another, and whether it fits with all of them.

    Settings that reduce the missing memory by less than 1 % are left out.
    """
    taken: dict[str, str] = {}
    missing = plan_capacity(config, models, nodes).missing_bytes
    for setting, value, change in memory_savings(config, sum(node.gpus for node in nodes)):
        plan = plan_capacity(change(config), models, nodes)
        if plan.placed is not None and plan.missing_bytes <= 0.99 * missing:
            config, missing, taken[setting] = change(config), plan.missing_bytes, value
            if not plan.shortages:
                break
    return [f"{setting}: {value}" for setting, value in taken.items()], not missing
