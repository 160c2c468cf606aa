"""The text of a capacity plan: memory tables, totals per node, time estimates and shortages.

The time estimates follow a roofline model (Williams, Waterman and Patterson, 2009) of device data sheets. Each decoding
step reads all weights and the KV cache of the running sequences, so it is bound by memory bandwidth until there are
enough sequences to be bound by FLOP/s. Prefill and training are bound by FLOP/s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from marl_ray.cluster.capacity_plan import ActorPlacement, CapacityPlan, ModelInfos
from marl_ray.cluster.hardware import CPU_CORE, GIB, DeviceSpec, gib
from marl_ray.cluster.memory_estimate import (
    DTYPE_BYTES,
    LearnerSize,
    ModelInfo,
    ProfilingFailed,
    engine_batch,
    optimizer_state_bytes,
)
from marl_ray.cluster.placement_plan import AgentPlacement, PlacementPlan, describe_shortage
from marl_ray.cluster.sequences import sequences_in_flight
from marl_ray.config import AgentConfig, Config
from marl_ray.config.budget import completions_per_episode, nodes_per_episode
from marl_ray.config.resource_sections import takes_turns
from marl_ray.core.ids import PolicyId
from marl_ray.learning.arguments import FLOAT_BYTES, microbatch_tokens, wire_dtype
from marl_ray.plugins.planner.memory_savings import suggest_settings

DECODE = 0.6
"""Fraction of a device's memory bandwidth that decoding achieves; an assumption."""
PREFILL = 0.5
"""Fraction of a device's FLOP/s that prefill achieves; an assumption."""
TRAIN = 0.4
"""Fraction of a device's FLOP/s that forward and backward passes achieve; an assumption."""
WEIGHT_SYNC = 5e9
"""Bytes per second of a weight transfer over the network or the object store; an assumption."""
SLAB_SYNC = 250e9
"""Bytes per second of a weight transfer within a GPU; an assumption."""
SYNC_CALLS = 0.07
"""Seconds of a weight update beside the transfer: the median of `time/sync` in configs/quickstart.yaml on two cores.
With GPUs an assumption."""
HOST_LAYER = 0.0055
"""Seconds in which the host launches the kernels of one layer in one micro-batch, forwards and backwards: 120 kernels
of 46 microseconds, from one profile on an H100. A small model's update takes this time, whatever the GPU."""
BUS = 40e9
"""Bytes per second from a GPU to pinned host memory, and back at the same time; an assumption."""
ENGINE_SLEEP = {"kv": 0.1, "stream": 0.1, "turns": 0.25}
"""Seconds in which an engine releases its memory and allocates it again, per step; assumptions."""
DECODE_STEP = {True: 0.003, False: 0.009}
"""Seconds of each decoding step beside its kernels, with and without a GPU: scheduling, sampling and launches. The
first value is an assumption; the second is measured with 64 sequences of the toy model."""


NAME_WIDTH = 22
COLUMN_WIDTH = 13
COLUMNS = (
    *("process", "programs", "CUDA", "weights", "gradients", "optimizer", "gathered", "reference", "critic"),
    *("offloaded", "checkpoint", "loading", "activations", "logits", "allocator", "reload", "graphs", "KV cache"),
    *("buffers", "object store", "snapshot"),
)


def report_lines(config: Config, models: ModelInfos, plan: CapacityPlan) -> list[str]:
    """Return memory per actor, totals per node, and the estimated time of a step; nothing without a placement."""
    if plan.placed is None:
        return []
    on_hosts = []
    on_gpus = []
    unknown = []
    for actor in plan.placed:
        if actor.memory is None:
            unknown.append(str(actor.id))
            continue
        on_hosts.append((actor, actor.memory.host))
        if actor.memory.device:
            on_gpus.append((actor, actor.memory.device))
    lines = ["maximum memory of the processes, GiB:", *_memory_table(plan, on_hosts)]
    if on_gpus:
        lines += ["maximum memory of the GPUs, GiB:", *_memory_table(plan, on_gpus)]
    if unknown:
        lines.append(f"not included, because model sizes are unknown: {', '.join(unknown)}")
    lines += ["totals per node:", *_node_lines(plan)]
    estimates = estimate_throughputs(config, models, plan)
    if estimates:
        lines += ["estimated time of a step:", *_throughput_lines(estimates, plan.plan), _assumptions(models)]
    return lines


def shortage_message(config: Config, models: ModelInfos, plan: CapacityPlan) -> str:
    """Return one line with the first shortage and the settings that remove it; empty if the run fits."""
    if plan.placed is None:
        return describe_shortage(plan.plan, [node.resources for node in plan.nodes])
    if not plan.shortages:
        return ""
    (first, _), *others = plan.shortages
    problem = f"this run does not fit: {first}"
    if others:
        problem += f" (and {len(others)} more)"
    settings, enough = suggest_settings(config, models, plan.nodes)
    if enough:
        return f"{problem}. It fits with {', '.join(settings)}"
    problem += ". No known setting is sufficient"
    if settings:
        problem += f"; these settings reduce the memory: {', '.join(settings)}"
    return f"{problem}. Use a smaller model, or plan for larger machines with --cluster"


def _memory_table(plan: CapacityPlan, actors: Sequence[tuple[ActorPlacement, Mapping[str, float]]]) -> list[str]:
    """Return one line per actor and one column per part of its memory; the sandbox workers of a node share one line."""
    workers_per_node = Counter(actor.node for actor, _ in actors if actor.id.kind == "sandbox")
    rows: dict[tuple[str, str], Mapping[str, float]] = {}
    for actor, parts in sorted(actors, key=lambda row: row[0].id.kind == "sandbox"):
        name = str(actor.id)
        if actor.id.kind == "sandbox":
            name = f"{workers_per_node[actor.node]} x sandbox, each"
        rows[name, _location(plan, actor)] = parts
    columns = [column for column in COLUMNS if any(column in parts for parts in rows.values())]
    lines = [_table_line("", [*columns, "total"], "on")]
    for (name, location), parts in rows.items():
        cells = []
        for column in columns:
            cells.append(f"{parts[column] / GIB:.2f}" if column in parts else "-")
        cells.append(f"{sum(parts.values()) / GIB:.2f}")
        lines.append(_table_line(name, cells, location))
    return lines


def _table_line(name: str, cells: Sequence[str], location: str) -> str:
    columns = "".join(f"{cell:>{COLUMN_WIDTH}}" for cell in cells)
    return f"  {name:<{NAME_WIDTH}}{columns}  {location}"


def _location(plan: CapacityPlan, actor: ActorPlacement) -> str:
    node = plan.nodes[actor.node].name
    if not actor.gpus:
        return node
    gpus = " and ".join(map(str, actor.gpus))
    return f"{node}, GPU {gpus}"


def _node_lines(plan: CapacityPlan) -> list[str]:
    node_of = {actor.id: actor.node for actor in plan.placed or ()}
    cpus_on = [0.0] * len(plan.nodes)
    for bundle in plan.plan.bundles:
        cpus_on[node_of[bundle.actors[0]]] += bundle.cpus  # all actors of a bundle are on one node
    lines = []
    for index, node in enumerate(plan.nodes):
        cpus = cpus_on[index]
        cpus_of = "" if math.isinf(node.cpus) else f" of {node.cpus:g}"
        parts = [f"{cpus:g}{cpus_of} CPUs", f"{_used(plan.host_memory(index), node.memory)} of memory"]
        for gpu in range(node.gpus):
            used = plan.gpu_memory(index, gpu)
            if used:
                parts.append(f"GPU {gpu}: {_used(used, node.device_memory)}")
        note = "" if index else ", including Ray and the driver"
        lines.append(f"  {node.name} ({node}): {', '.join(parts)}{note}")
    return lines


def _used(memory: float, total: float) -> str:
    if math.isinf(total):
        return gib(memory)
    return f"{memory / GIB:.1f} of {gib(total)}"


def _throughput_lines(estimates: Mapping[PolicyId, Throughput], plan: PlacementPlan) -> list[str]:
    lines = []
    by_device: dict[int | PolicyId, list[Throughput]] = {}
    """Throughputs by the number of the shared device, or by the first policy of a device without one."""
    divided: PolicyId | None = None
    for policy, estimate in estimates.items():
        rollout = f"rollout {_seconds(estimate.rollout_s)} ({estimate.sampled_per_s:,.0f} tokens/s)"
        lines.append(f"  {policy}: {rollout}, {_training(estimate)}")
        placement = plan.agents[policy.first_agent]
        device = policy if placement.device is None else placement.device
        if placement.divides_gpu:
            # Policies with fractions of GPUs may be on one GPU. This is the worse case, and the usual one.
            divided = divided or policy
            device = divided
        by_device.setdefault(device, []).append(estimate)
    in_turns = takes_turns(plan.residency)
    slowest = max(_step_seconds(on_device, in_turns) for on_device in by_device.values())
    how = "learners on the same GPUs one after another" if in_turns else "agents in parallel"
    return [*lines, f"  {_seconds(slowest)} per step: {how}, phases in sequence, without the sandbox"]


def _training(estimate: Throughput) -> str:
    if not estimate.learn_s:
        return "does not learn"
    parts = [
        f"training {_seconds(estimate.learn_s)} ({estimate.learned_per_s:,.0f} tokens/s)",
        f"weight sync {_seconds(estimate.sync_s)}",
    ]
    if estimate.moves_s:
        parts.append(f"moves {_seconds(estimate.moves_s)}")
    return ", ".join(parts)


def _step_seconds(estimates: Sequence[Throughput], in_turns: bool) -> float:
    """Return the seconds of a step on one device. Engines sample at the same time. Learners take turns, or share the
    device, where one launches kernels while another computes."""
    rollout = 0.0
    one_after_another = 0.0
    computing = 0.0
    slowest_learner = 0.0
    slowest_sync = 0.0
    for estimate in estimates:
        rollout = max(rollout, estimate.rollout_s)
        one_after_another += estimate.learn_s + estimate.sync_s + estimate.moves_s
        computing += estimate.compute_s
        slowest_learner = max(slowest_learner, estimate.learn_s)
        slowest_sync = max(slowest_sync, estimate.sync_s)
    if in_turns:
        return rollout + one_after_another
    return rollout + max(computing, slowest_learner) + slowest_sync


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _assumptions(models: ModelInfos) -> str:
    prompts = sorted({model.prompt for model in models.values()})
    return (
        f"  assumed: prompts of {' or '.join(map(str, prompts))} tokens, completions of maximum length; engines decode "
        f"at {DECODE:.0%} of a device's bandwidth plus {1000 * DECODE_STEP[True]:g} ms per step (on a CPU "
        f"{1000 * DECODE_STEP[False]:g} ms) and prefill at {PREFILL:.0%} of its FLOP/s, learners reach "
        f"{TRAIN:.0%}, or {1000 * HOST_LAYER:g} ms per layer and micro-batch on a GPU; weights are sent at "
        f"{WEIGHT_SYNC / 1e9:g} GB/s, within a GPU at {SLAB_SYNC / 1e9:g}, plus {1000 * SYNC_CALLS:g} ms; state moves "
        f"at {BUS / 1e9:g} GB/s; a core has {CPU_CORE.flops / 1e9:g} GFLOP/s and {CPU_CORE.bandwidth / 1e9:g} GB/s"
    )


@dataclass(frozen=True, slots=True)
class Throughput:
    """Seconds of each phase of a step for one policy, and tokens per second of rollout and training. A policy that does
    not learn has only a rollout.

    compute_s: the part of `learn_s` in which the GPU computes. moves_s: moves of state on a device used in turns.
    """

    rollout_s: float
    learn_s: float
    compute_s: float
    sync_s: float
    moves_s: float
    sampled_per_s: float
    learned_per_s: float


def estimate_throughputs(config: Config, models: ModelInfos, plan: CapacityPlan) -> dict[PolicyId, Throughput]:
    """Return the throughput of each policy whose model and devices are known."""
    if not plan.placed:
        return {}
    estimates = {}
    for policy in config.policies:
        placement = plan.plan.agents[policy.first_agent]
        model = models.get(config.agents[policy.first_agent].name)
        node = next(actor.node for actor in plan.placed if actor.id.policy == policy)
        device = plan.nodes[node].device if placement.generator_gpus else CPU_CORE
        if model is not None and device is not None:
            with suppress(ProfilingFailed):
                estimates[policy] = _estimate(config, policy, model, device, placement)
    return estimates


def _estimate(
    config: Config, policy: PolicyId, model: ModelInfo, device: DeviceSpec, placement: AgentPlacement
) -> Throughput:
    """Return the throughput of one policy. Raises ProfilingFailed."""
    agent = config.agents[policy.first_agent]
    engine = agent.generator
    learner = agent.learner
    on_gpu = placement.generator_gpus > 0
    turns = config.training.num_turns
    new_tokens = agent.max_new_tokens
    item = DTYPE_BYTES[wire_dtype(agent, on_gpu)]
    groups = config.training.rollout_buffer_size * nodes_per_episode(config)
    completions = config.training.rollout_buffer_size * completions_per_episode(config)
    sampled = completions * new_tokens

    # Each engine samples its share of a turn in waves of at most max_num_seqs sequences.
    limit, _ = engine_batch(engine, 0.0)
    width: float = max(1, round(engine.cpus))  # devices of one engine; on a CPU, a device is a core
    if on_gpu:
        limit, _ = engine_batch(engine, device.memory, sequences_in_flight(config, policy))
        width = placement.generator_gpus
    share = math.ceil(completions / (turns * engine.replicas))
    waves = math.ceil(share / limit)
    sequences = max(1, min(limit, share))
    # Every decoding step reads all weights, and the keys and values of half of the completion on average.
    context = model.prompt + new_tokens / 2
    bytes_per_step = model.parameters * item + sequences * context * model.kv * item
    read_s = bytes_per_step / (device.bandwidth * DECODE * width)
    forward_s = 2.0 * model.parameters * sequences / (device.flops * PREFILL * width)
    step_s = DECODE_STEP[on_gpu] + max(read_s, forward_s)
    decode_s = turns * waves * new_tokens * step_s
    prefilled = groups * model.prompt / engine.replicas
    prefill_s = 2.0 * model.parameters * prefilled / (device.flops * PREFILL * width)
    rollout_s = decode_s + prefill_s
    sampled_per_s = sampled / rollout_s
    size = model.learner(config, agent, on_gpu)
    if policy not in config.learning_policies:
        return Throughput(rollout_s, 0.0, 0.0, 0.0, 0.0, sampled_per_s, 0.0)

    # A learner of several policies gives each policy its part of the time.
    devices_per_rank = placement.learner_gpus if on_gpu else max(1, round(learner.cpus))
    learner_devices = learner.ranks * devices_per_rank / len(config.learner_policies(policy))
    learned = groups * model.prompt + sampled
    compute_s = size.flops_per_token * learned / (device.flops * TRAIN * learner_devices)
    learn_s = compute_s
    moves_s = 0.0
    if on_gpu:
        micro_batches = math.ceil(learned / learner.ranks / microbatch_tokens(config, on_gpu))
        learn_s = max(compute_s, HOST_LAYER * model.layers * micro_batches)
        moves_s = _move_seconds(config, agent, size)
    bandwidth = SLAB_SYNC if placement.shares_gpu else WEIGHT_SYNC
    sync_s = SYNC_CALLS + model.parameters * item / bandwidth
    return Throughput(rollout_s, learn_s, compute_s, sync_s, moves_s, sampled_per_s, sampled / learn_s)


def _move_seconds(config: Config, agent: AgentConfig, size: LearnerSize) -> float:
    """Return the seconds in which one learner's state moves in a step, and its engine falls asleep and wakes."""
    residency = config.resources.residency
    if residency is None or residency == "resident":
        return 0.0
    weights = FLOAT_BYTES * size.parameters / agent.learner.ranks
    state = optimizer_state_bytes(config.training.optimizer, size.trained, size.rows) / agent.learner.ranks
    # In turns all state moves in, and out after the update. Streamed state moves both ways at the same time.
    moved = {"kv": 0.0, "stream": state, "turns": 2 * (weights + state)}
    return moved[residency] / BUS + ENGINE_SLEEP[residency]
