"""The decision whether engines and learners share GPUs, and what stays on them: `resources.colocate: auto` and `true`.

The decision needs the nodes' GPUs and the models' sizes. Results do not depend on it, so a run may be resumed with
another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from marl_ray.cluster.bundles import pack
from marl_ray.cluster.capacity_plan import FRAGMENTED, CapacityPlan, ModelInfos, plan_capacity
from marl_ray.cluster.hardware import NodeSpec, gib, total_gpus
from marl_ray.cluster.placement_plan import PlacementError, make_plan
from marl_ray.config import AgentConfig, Config, LoraConfig
from marl_ray.config.policies import generator_groups
from marl_ray.config.resource_sections import Residency, ResourcesConfig

RESIDENCIES: tuple[Residency, ...] = get_args(Residency)
ENGINE_SHARE = 0.9
"""Share of a GPU that engines may use together, unless the config asks for less."""


def is_decided(
    agents: Sequence[AgentConfig], lora: LoraConfig, resources: ResourcesConfig, nodes: Sequence[NodeSpec]
) -> bool:
    """Return whether the config has decided, or each actor has a GPU; `decide_residency` then needs no models."""
    wish = resources.colocate
    if wish != "auto":
        return wish is False or wish in RESIDENCIES
    gpus = [{"CPU": 0.0, "GPU": float(node.gpus)} for node in nodes if node.gpus]
    if not gpus:
        return True
    for agent in agents:
        if agent.learner.gpus is not None or agent.generator.gpus == 0:
            return True  # the config assigns GPUs
    try:
        plan = make_plan(agents, lora, replace(resources, colocate=False), cluster_has_gpus=True)
    except PlacementError:  # an engine has a fraction of a GPU, of which its learner has no share
        return False
    # CPUs do not matter: too few of them are too few with shared GPUs, too.
    with_gpus = [replace(bundle, cpus=0.0) for bundle in plan.bundles if bundle.gpus]
    return pack(with_gpus, gpus) is not None


def decide_residency(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> tuple[Config, str]:
    """Return the config with a decided `resources.colocate`, and one line with the reason.

    The config stays as it is, and the reason is empty, if the config has decided, or if each actor has a GPU.
    """
    if is_decided(config.agents, config.lora, config.resources, nodes):
        return config, ""
    try:
        residency, reason = _first_that_fits(config, models, nodes)
    except PlacementError:
        if config.resources.colocate is True:
            raise
        return config, ""
    if residency != "resident" and _fits_with_one_base(config, models, nodes):
        reason += ". With lora.share_engine and share_base true, everything would stay on the GPU"
    decided = replace(config, resources=replace(config.resources, colocate=residency))
    return decided, f"resources.colocate: {residency}, {reason}"


def _fits_with_one_base(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> bool:
    """Return whether policies that train adapters could all stay on a GPU with one base model in one engine and one
    learner."""
    if not config.lora.rank or config.training.inflight == "drain":  # requests of other policies cannot be drained
        return False
    lora = replace(config.lora, in_engine=None, share_engine=True, share_base=True)
    together = replace(config, lora=lora, resources=replace(config.resources, colocate="resident"))
    if len(together.generator_groups) == len(together.policies):
        return False  # the policies have different base models
    agents = share_gpus(config.agents, lora, together.resources, nodes)
    plan = plan_capacity(replace(together, agents=agents), models, nodes)
    return plan.placed is not None and not plan.shortages


def share_gpus(
    agents: Sequence[AgentConfig], lora: LoraConfig, resources: ResourcesConfig, nodes: Sequence[NodeSpec]
) -> tuple[AgentConfig, ...]:
    """Return the agents with engines that have shares of GPUs, if engines and learners share GPUs, and if there are
    more engines than GPUs. Engines with a number of GPUs in the config keep it."""
    engines = 0
    for policies in generator_groups(agents, lora):
        engines += agents[policies[0].first_agent].generator.replicas
    gpus = total_gpus(nodes)
    if resources.residency is None or not 0 < gpus < engines:
        return tuple(agents)
    per_gpu = math.ceil(engines / gpus)
    sharing = []
    for agent in agents:
        generator = agent.generator
        if generator.gpus is None and generator.tensor_parallel == 1:
            utilization = min(generator.gpu_memory_utilization, round(ENGINE_SHARE / per_gpu, 3))
            generator = replace(generator, gpus=1 / per_gpu, gpu_memory_utilization=utilization)
        sharing.append(replace(agent, resources=replace(agent.resources, generator=generator)))
    return tuple(sharing)


def share_gpus_of_evaluation(config: Config, nodes: Sequence[NodeSpec]) -> Config:
    """Return the config with shares of GPUs as in `share_gpus`, for an evaluation, which has engines only."""
    needed = 0
    for policy in config.policies:
        engine = config.agents[policy.first_agent].generator
        if engine.gpus is None:
            needed += engine.replicas * engine.tensor_parallel
    resources = config.resources
    if resources.colocate == "auto" and 0 < total_gpus(nodes) < needed:
        resources = replace(resources, colocate="turns")
    merged = LoraConfig()  # each agent has an engine with merged weights
    return replace(config, resources=resources, agents=share_gpus(config.agents, merged, resources, nodes))


def _first_that_fits(config: Config, models: ModelInfos, nodes: Sequence[NodeSpec]) -> tuple[Residency, str]:
    """Return the first residency that fits in memory, and the reason."""
    # Rollouts that run ahead, and the other policies of a shared process, need the device while a learner updates.
    is_always_busy = config.training.max_staleness > 0 or config.lora.share_engine or config.lora.share_base
    choices = RESIDENCIES[:1] if is_always_busy else RESIDENCIES  # the first one needs no turns
    last = choices[-1]
    too_large: list[str] = []
    for residency in choices:
        resources = replace(config.resources, colocate=residency)
        agents = share_gpus(config.agents, config.lora, resources, nodes)
        plan = plan_capacity(replace(config, agents=agents, resources=resources), models, nodes)
        if not plan.is_known:
            return last, "because the memory of a model or of a GPU is not known"
        used = gib(_largest_use(plan))
        if not plan.shortages:
            reason = f"it needs {used} of {_usable(nodes)}"
            if too_large:
                reason += f"; too large: {', '.join(too_large)}"
            return residency, f"because {reason}"
        too_large.append(f"{residency} {used}")
    reason = f"no way to share fits by the plan ({', '.join(too_large)} of {_usable(nodes)}): see marl-ray plan"
    return last, f"although {reason}"


def _largest_use(plan: CapacityPlan) -> float:
    """Return the bytes used on the fullest GPU, or on the fullest node without GPUs."""
    on_gpus = 0.0
    on_nodes = 0.0
    for index, node in enumerate(plan.nodes):
        on_nodes = max(on_nodes, plan.host_memory(index))
        for gpu in range(node.gpus):
            on_gpus = max(on_gpus, plan.gpu_memory(index, gpu))
    return on_gpus or on_nodes


def _usable(nodes: Sequence[NodeSpec]) -> str:
    gpu_memory = [node.device_memory for node in nodes if node.gpus]
    if gpu_memory:
        return f"{gib(min(gpu_memory) * (1 - FRAGMENTED))} per GPU"
    return f"{gib(min(node.memory for node in nodes))} per node"
