"""The plan of a run before anything starts: what each actor needs, where it goes, whether that fits, and how long a
step may take. Pure, but for what `ModelInfo` rehearses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from marl_ray.cluster.hardware import CPU_CORE, GIB, DeviceSpec, NodeSpec
from marl_ray.cluster.memory_estimate import (
    ITEM,
    SANDBOX_PROCESS,
    MemoryEstimate,
    estimate_generator_memory,
    estimate_learner_memory,
)
from marl_ray.cluster.model_info import ModelInfo, ProfilingFailed
from marl_ray.cluster.placement_plan import PlacementPlan, make_plan, place
from marl_ray.cluster.throughput import Throughput, Workload, estimate_throughput
from marl_ray.config import AgentConfig, Config
from marl_ray.config.budget import nodes_per_episode
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.arguments import wire_dtype

ModelInfos = Mapping[str, ModelInfo]
"""By name, those whose configuration could be read."""
RAY_PROCESSES, DRIVER_PROCESS = 450e6, 400e6
"""Ray's own on the head node, and the driver."""


@dataclass(frozen=True, slots=True)
class ActorPlacement:
    """One actor: what it needs, its node, and its GPUs there; None where its model is not known."""

    owner: ActorId
    need: MemoryEstimate | None
    node: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """`placed` is None where the nodes have not the cores and GPUs that are asked for."""

    machines: Sequence[NodeSpec]
    plan: PlacementPlan
    placed: tuple[ActorPlacement, ...] | None

    def host(self, node: int) -> float:
        """Bytes of a node's memory. What learner and engines of a policy share of the object store is counted once."""
        assert self.placed is not None
        here = [one for one in self.placed if one.node == node]
        shared: dict[PolicyId | None, float] = {}
        total = RAY_PROCESSES + DRIVER_PROCESS if node == 0 else 0.0
        for one in here:
            if one.need is not None:
                published = one.need.host.get("published", 0.0)
                shared[one.owner.policy] = max(shared.get(one.owner.policy, 0.0), published)
                total += one.need.host_total - published
        return total + sum(shared.values())

    def gpu(self, node: int, number: int) -> float:
        """Bytes of one GPU's memory; where actors take turns, of whoever needs the most: all engines, or a learner."""
        assert self.placed is not None
        here = [one for one in self.placed if one.node == node and number in one.gpus]
        needs = [(one.owner.kind, one.need.device_total) for one in here if one.need is not None]
        if all(of_agent.device is None for of_agent in self.plan.agents):
            return sum(need for _, need in needs)
        engines = sum(need for kind, need in needs if kind == "generator")
        return max([engines, *(need for kind, need in needs if kind == "learner")])

    @property
    def shortages(self) -> list[str]:
        """What does not fit, a line each."""
        if self.placed is None:
            return []
        found = []
        for index, machine in enumerate(self.machines):
            need = self.host(index)
            if need > machine.memory:
                found.append(f"{machine.name} has {_gib(machine.memory)} of memory, and {_gib(need)} are needed")
            memory = machine.device.memory if machine.device else math.inf
            for number in range(machine.gpus):
                need = self.gpu(index, number)
                if need > memory:
                    who = " and ".join(str(one.owner) for one in self.placed if (one.node, number) in _places(one))
                    verb = "need" if " and " in who else "needs"
                    found.append(f"{machine.name} GPU {number} has {_gib(memory)}, and {who} {verb} {_gib(need)}")
        for one in self.placed:
            cache = one.need.device.get("KV cache", 1.0) if one.need else 1.0
            if cache <= 0:
                found.append(f"{one.owner} has no room for keys and values: {_gib(-cache)} more are needed")
        return found


def _places(one: ActorPlacement) -> Iterator[tuple[int, int]]:
    return ((one.node, number) for number in one.gpus)


def _gib(memory: float) -> str:
    return f"{memory / GIB:.1f} GiB"


def plan_capacity(config: Config, models: ModelInfos, machines: Sequence[NodeSpec]) -> CapacityPlan:
    """Raises PlacementError for GPUs that there is no transport between."""
    has_gpus = any(machine.gpus for machine in machines)
    plan = make_plan(config, has_gpus)
    where = place(plan.slots, [machine.resources for machine in machines])
    if where is None:
        return CapacityPlan(machines, plan, None)
    free = [[1.0] * machine.gpus for machine in machines]
    placed = []
    for slot, node in zip(plan.slots, where, strict=True):
        gpus = _take(free[node], slot.gpus)
        for owner in slot.owners:
            placed.append(
                ActorPlacement(owner, estimate_actor_memory(config, models, plan, owner, machines[node]), node, gpus)
            )
    return CapacityPlan(machines, plan, tuple(placed))


def _take(free: list[float], amount: float) -> tuple[int, ...]:
    """Numbers of GPUs with so much left: whole ones, or one that is shared."""
    if amount < 1:
        found = next((n for n, left in enumerate(free) if amount and left + 1e-9 >= amount), None)
        if found is None:
            return ()
        free[found] -= amount
        return (found,)
    whole = tuple(n for n, left in enumerate(free) if left == 1.0)[: math.ceil(amount)]
    for number in whole:
        free[number] = 0.0
    return whole


def estimate_actor_memory(
    config: Config, models: ModelInfos, plan: PlacementPlan, owner: ActorId, machine: NodeSpec
) -> MemoryEstimate | None:
    """Of one actor on that machine; None where its model is not known, or does not compute without data."""
    if owner.kind == "sandbox":
        return MemoryEstimate({"process": SANDBOX_PROCESS, "programs": config.sandbox.memory_mb * 2.0**20}, {})
    number = owner.replica if owner.policy is None else owner.policy.number
    agent, of_agent = config.agents[number], plan.agents[number]
    model = models.get(agent.name)
    if model is None:
        return None
    on_gpu, nccl = of_agent.generator_gpus > 0, of_agent.transport == "nccl"
    wire = wire_dtype(agent, on_gpu)
    if owner.kind == "learner":
        try:
            size, _ = model.learner(config, agent, on_gpu)
        except ProfilingFailed:
            return None
        policies = len(config.learner_policies(config.policy_of(number)))
        return estimate_learner_memory(size, config, agent, on_gpu, wire, nccl, policies)
    memory = (machine.device.memory if machine.device else 0.0) if on_gpu else 0.0
    if on_gpu and not memory:
        return None
    return estimate_generator_memory(model.engine(), agent, config.model.max_length, memory, wire, nccl)


Change = tuple[str, str, Callable[[Config], Config]]
"""A setting, its value, and what it makes of a config."""


def memory_savings(config: Config, has_gpus: bool) -> list[Change]:
    """What makes a run need less memory, cheapest first: at first what only takes time, then what learns otherwise."""
    optimizer, found = config.optimizer, []
    section = config.algorithm
    least = min(512, optimizer.microbatch_tokens)
    if least < optimizer.microbatch_tokens:
        found.append((f"{section}.microbatch_tokens", str(least), _optimizer(microbatch_tokens=least)))
    if not optimizer.gradient_checkpointing:
        found.append((f"{section}.gradient_checkpointing", "true", _optimizer(gradient_checkpointing=True)))
    if has_gpus and any(agent.reference_kl_coef and not agent.learner.offload_reference for agent in config.agents):
        found.append(("resources.learner.offload_reference", "true", _learners(offload_reference=True)))
    if not has_gpus and any(agent.generator.kv_cache_mb > 128 for agent in config.agents):
        found.append(("resources.generator.kv_cache_mb", "128", _generators(kv_cache_mb=128)))
    if any(agent.generator.max_num_seqs > 64 for agent in config.agents):
        found.append(("resources.generator.max_num_seqs", "64", _generators(max_num_seqs=64)))
    if has_gpus and any(
        agent.generator.tensor_parallel == 1 and agent.generator.gpus is None for agent in config.agents
    ):
        found.append(("resources.generator.tensor_parallel", "2", _generators(tensor_parallel=2)))
    if has_gpus:
        found += [("resources.learner.ranks", str(n), _learners(ranks=n)) for n in (2, 4, 8) if n > _ranks(config)]
    smaller = {"adamw": ("adamw_8bit", "adafactor"), "adamw_8bit": ("adafactor",)}
    for name in smaller.get(optimizer.optimizer, ()):
        found.append((f"{section}.optimizer", name, _smaller(name)))
    if not config.lora.rank and not any(agent.learner.offload_reference for agent in config.agents):
        found.append(("lora.rank", "16", lambda c: replace(c, lora=replace(c.lora, rank=16))))
    return found


def _ranks(config: Config) -> int:
    return max(agent.learner.ranks for agent in config.agents)


def _optimizer(**values: object) -> Callable[[Config], Config]:
    return lambda config: replace(config, optimizer=replace(config.optimizer, **values))  # type: ignore[arg-type]


def _smaller(name: str) -> Callable[[Config], Config]:
    """Another optimizer; 8 bits are for one rank."""
    change = _optimizer(optimizer=name)
    return lambda config: config if name == "adamw_8bit" and _ranks(config) > 1 else change(config)


def _learners(**values: object) -> Callable[[Config], Config]:
    def changed(agent: AgentConfig) -> AgentConfig:
        return replace(agent, learner=replace(agent.learner, **values))  # type: ignore[arg-type]

    return lambda config: replace(config, agents=tuple(map(changed, config.agents)))


def _generators(**values: object) -> Callable[[Config], Config]:
    def changed(agent: AgentConfig) -> AgentConfig:
        return replace(agent, generator=replace(agent.generator, **values))  # type: ignore[arg-type]

    return lambda config: replace(config, agents=tuple(map(changed, config.agents)))


def suggest_settings(config: Config, models: ModelInfos, machines: Sequence[NodeSpec]) -> tuple[list[str], bool]:
    """Settings to change, one after another until all fits, and whether it does then. Those that change nothing in
    what is short are left out."""
    taken: dict[str, str] = {}
    excess = _excess(plan_capacity(config, models, machines))
    for setting, value, change in memory_savings(config, any(machine.gpus for machine in machines)):
        tried = change(config)
        found = plan_capacity(tried, models, machines)
        if found.placed is None or (left := _excess(found)) > 0.99 * excess:
            continue
        config, excess = tried, left
        taken[setting] = value
        if not found.shortages:
            break
    return [f"{setting}: {value}" for setting, value in taken.items()], not excess


def _excess(found: CapacityPlan) -> float:
    """Bytes that are short, of all nodes and GPUs."""
    if found.placed is None:
        return math.inf
    total = 0.0
    for index, machine in enumerate(found.machines):
        total += max(0.0, found.host(index) - machine.memory)
        memory = machine.device.memory if machine.device else math.inf
        total += sum(max(0.0, found.gpu(index, number) - memory) for number in range(machine.gpus))
    return total + sum(max(0.0, -one.need.device.get("KV cache", 0.0)) for one in found.placed if one.need)


def estimate_throughputs(config: Config, models: ModelInfos, found: CapacityPlan) -> dict[PolicyId, Throughput]:
    """Of each policy whose model and devices are known."""
    estimates = {}
    for policy in config.policies if found.placed else ():
        agent, of_agent = config.agents[policy.number], found.plan.agents[policy.number]
        model = models.get(agent.name)
        on_gpu = of_agent.generator_gpus > 0
        node = next(one.node for one in found.placed or () if one.owner.policy == policy)
        device: DeviceSpec | None = found.machines[node].device if on_gpu else CPU_CORE
        if model is None or device is None:
            continue
        try:
            _, flops = model.learner(config, agent, on_gpu)
        except ProfilingFailed:
            continue
        rollout = config.rollout
        groups = rollout.rollout_buffer_size * nodes_per_episode(config)
        load = Workload(groups, rollout.num_turns, model.prompt, rollout.num_generations, agent.max_new_tokens)
        engine, turns = agent.generator, len(config.learner_policies(policy))
        estimates[policy] = estimate_throughput(
            model.engine(),
            load,
            device,
            engine.replicas * (of_agent.generator_gpus if on_gpu else max(1, round(engine.cpus))),
            ITEM[wire_dtype(agent, on_gpu)],
            engine.max_num_seqs * engine.replicas,
            device,
            agent.learner.ranks * (of_agent.learner_gpus if on_gpu else max(1, round(agent.learner.cpus))) / turns,
            flops,
        )
    return estimates
