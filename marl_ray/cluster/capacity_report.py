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
from marl_ray.cluster.hardware import CPU_CORE, GIB, DeviceSpec
from marl_ray.cluster.memory_estimate import (
    DTYPE_BYTES,
    LearnerSize,
    ModelInfo,
    ProfilingFailed,
    engine_batch,
    optimizer_state_bytes,
)
from marl_ray.cluster.memory_savings import suggest_settings
from marl_ray.cluster.placement_plan import AgentPlacement, PlacementPlan, describe_shortage
from marl_ray.config import AgentConfig, Config
from marl_ray.config.budget import completions_per_episode, nodes_per_episode, sequences_in_flight
from marl_ray.config.resource_sections import takes_turns
from marl_ray.core.ids import PolicyId
from marl_ray.learning.arguments import FLOAT_BYTES, microbatch_tokens, wire_dtype

DECODE, PREFILL, TRAIN = 0.6, 0.5, 0.4
"""Achieved fractions of the data-sheet values: of the memory bandwidth in decoding, of the FLOP/s in prefill and in
forward and backward passes. Assumptions."""
WEIGHT_SYNC, SLAB_SYNC = 5e9, 250e9
"""Bytes per second of a weight transfer over the network or the object store, and within a GPU; assumptions."""
SYNC_CALLS = 0.05
"""Seconds of a weight update beside the transfer. Measured without GPUs; updates of large models take longer."""
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


NAME_WIDTH, COLUMN_WIDTH = 22, 13
COLUMNS = (
    *("process", "programs", "CUDA", "weights", "gradients", "optimizer", "gathered", "reference", "critic"),
    *("offloaded", "checkpoint", "loading", "activations", "logits", "allocator", "reload", "graphs", "KV cache"),
    *("buffers", "object store", "snapshot"),
)


def report_lines(config: Config, models: ModelInfos, plan: CapacityPlan) -> list[str]:
    """Return memory per actor, totals per node, and the estimated time of a step; nothing without a placement."""
    if plan.placed is None:
        return []
    known = [actor for actor in plan.placed if actor.memory]
    lines = ["maximum memory of the processes, GiB:", *_memory_table(plan, known, on_gpu=False)]
    if on_gpus := [actor for actor in known if actor.memory and actor.memory.device]:
        lines += ["maximum memory of the GPUs, GiB:", *_memory_table(plan, on_gpus, on_gpu=True)]
    if unknown := [str(actor.id) for actor in plan.placed if actor.memory is None]:
        lines.append(f"not included, because model sizes are unknown: {', '.join(unknown)}")
    lines += ["totals per node:", *_node_lines(plan)]
    if estimates := estimate_throughputs(config, models, plan):
        lines += ["estimated time of a step:", *_throughput_lines(estimates, plan.plan), _assumptions(models)]
    return lines


def shortage_message(config: Config, models: ModelInfos, plan: CapacityPlan) -> str:
    """Return one line with the first shortage and the settings that remove it; empty if the run fits."""
    if plan.placed is None:
        return describe_shortage(plan.plan, [node.resources for node in plan.nodes])
    if not plan.shortages:
        return ""
    (first, _), *others = plan.shortages
    more = f" (and {len(others)} more)" if others else ""
    settings, enough = suggest_settings(config, models, plan.nodes)
    if enough:
        return f"this run does not fit: {first}{more}. It fits with {', '.join(settings)}"
    tried = f"; these settings reduce the memory: {', '.join(settings)}" if settings else ""
    return (
        f"this run does not fit: {first}{more}. No known setting is sufficient{tried}. Use a smaller model, or plan "
        "for larger machines with --cluster"
    )


def _memory_table(plan: CapacityPlan, actors: Sequence[ActorPlacement], on_gpu: bool) -> list[str]:
    """Return one line per actor and one column per part; the sandbox workers of a node share one line."""
    workers = Counter(actor.node for actor in actors if actor.id.kind == "sandbox")
    rows: dict[tuple[str, str], Mapping[str, float]] = {}
    for actor in sorted(actors, key=lambda actor: actor.id.kind == "sandbox"):
        name = f"{workers[actor.node]} x sandbox, each" if actor.id.kind == "sandbox" else str(actor.id)
        assert actor.memory is not None
        rows[name, _location(plan, actor)] = actor.memory.device if on_gpu else actor.memory.host
    columns = [column for column in COLUMNS if any(column in parts for parts in rows.values())]
    lines = [f"  {'':<{NAME_WIDTH}}" + "".join(f"{column:>{COLUMN_WIDTH}}" for column in (*columns, "total")) + "  on"]
    for (name, location), parts in rows.items():
        cells = [f"{parts[column] / GIB:.2f}" if column in parts else "-" for column in columns]
        cells.append(f"{sum(parts.values()) / GIB:.2f}")
        lines.append(f"  {name:<{NAME_WIDTH}}" + "".join(f"{cell:>{COLUMN_WIDTH}}" for cell in cells) + f"  {location}")
    return lines


def _location(plan: CapacityPlan, actor: ActorPlacement) -> str:
    node = plan.nodes[actor.node].name
    return f"{node}, GPU {' and '.join(map(str, actor.gpus))}" if actor.gpus else node


def _node_lines(plan: CapacityPlan) -> list[str]:
    node_of = {actor.id: actor.node for actor in plan.placed or ()}
    lines = []
    for index, node in enumerate(plan.nodes):
        cpus = sum(bundle.cpus for bundle in plan.plan.bundles if node_of[bundle.actors[0]] == index)
        parts = [f"{cpus:g}{_of(node.cpus, '{:g}')} CPUs", f"{_used(plan.host_memory(index), node.memory)} of memory"]
        for number in range(node.gpus):
            if used := plan.gpu_memory(index, number):
                parts.append(f"GPU {number}: {_used(used, node.device_memory)}")
        note = "" if index else ", including Ray and the driver"
        lines.append(f"  {node.name} ({node}): {', '.join(parts)}{note}")
    return lines


def _of(total: float, form: str) -> str:
    return "" if math.isinf(total) else f" of {form.format(total)}"


def _used(memory: float, total: float) -> str:
    return f"{memory / GIB:.1f}{_of(total / GIB, '{:.1f}')} GiB"


def _throughput_lines(estimates: Mapping[PolicyId, Throughput], plan: PlacementPlan) -> list[str]:
    lines = [
        f"  {policy}: rollout {_seconds(estimate.rollout_s)} ({estimate.sampled_per_s:,.0f} tokens/s), "
        f"{_training(estimate)}"
        for policy, estimate in estimates.items()
    ]
    # Policies with fractions of GPUs may be on one GPU. This is the worse case, and the usual one.
    divided = [policy for policy in estimates if 0 < plan.agents[policy.number].generator_gpus < 1]
    by_device: dict[int | PolicyId, list[Throughput]] = {}
    for policy, estimate in estimates.items():
        device = plan.agents[policy.number].device
        alone = divided[0] if policy in divided else policy
        by_device.setdefault(alone if device is None else device, []).append(estimate)
    in_turns = takes_turns(plan.residency)
    slowest = max(_step_seconds(on_device, in_turns) for on_device in by_device.values())
    how = "learners on the same GPUs one after another" if in_turns else "agents in parallel"
    return [*lines, f"  {_seconds(slowest)} per step: {how}, phases in sequence, without the sandbox"]


def _training(estimate: Throughput) -> str:
    if not estimate.learn_s:
        return "does not learn"
    training = f"training {_seconds(estimate.learn_s)} ({estimate.learned_per_s:,.0f} tokens/s)"
    moves = f", moves {_seconds(estimate.moves_s)}" if estimate.moves_s else ""
    return f"{training}, weight sync {_seconds(estimate.sync_s)}{moves}"


def _step_seconds(estimates: Sequence[Throughput], in_turns: bool) -> float:
    """Return the seconds of a step on one device. Engines sample at the same time. Learners take turns, or share the
    device, where one launches kernels while another computes."""
    rollout = max(e.rollout_s for e in estimates)
    if in_turns:
        return rollout + sum(e.learn_s + e.sync_s + e.moves_s for e in estimates)
    learning = max(sum(e.compute_s for e in estimates), *(e.learn_s for e in estimates))
    return rollout + learning + max(e.sync_s for e in estimates)


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
    estimates = {}
    for policy in config.policies if plan.placed else ():
        on_gpu, model = (
            plan.plan.agents[policy.number].generator_gpus > 0,
            models.get(config.agents[policy.number].name),
        )
        node = next(actor.node for actor in plan.placed or () if actor.id.policy == policy)
        device = plan.nodes[node].device if on_gpu else CPU_CORE
        if model is not None and device is not None:
            with suppress(ProfilingFailed):
                estimates[policy] = _estimate(config, policy, model, device, plan.plan.agents[policy.number])
    return estimates


def _estimate(
    config: Config, policy: PolicyId, model: ModelInfo, device: DeviceSpec, placement: AgentPlacement
) -> Throughput:
    """Return the throughput of one policy. Raises ProfilingFailed."""
    agent, on_gpu, turns = config.agents[policy.number], placement.generator_gpus > 0, config.rollout.num_turns
    engine, learner = agent.generator, agent.learner
    size = model.learner(config, agent, on_gpu)
    # Numbers of devices of one engine and of all ranks. On a CPU, a device is a core.
    width = placement.generator_gpus if on_gpu else max(1, round(engine.cpus))
    ranks = learner.ranks * (placement.learner_gpus if on_gpu else max(1, round(learner.cpus)))
    learners = ranks / len(config.learner_policies(policy))

    groups = config.rollout.rollout_buffer_size * nodes_per_episode(config)
    sampled_completions = config.rollout.rollout_buffer_size * completions_per_episode(config)
    completions, new = sampled_completions / groups, agent.max_new_tokens
    item = DTYPE_BYTES[wire_dtype(agent, on_gpu)]
    # Each engine samples its share of a turn in waves of at most max_num_seqs sequences. Every step reads all weights.
    share = -(-sampled_completions // (turns * engine.replicas))
    limit, _ = engine_batch(
        engine, device.memory if on_gpu else 0.0, sequences_in_flight(config, policy) if on_gpu else None
    )
    waves = -(-share // limit)
    sequences = max(1, min(limit, share))
    context = model.prompt + new / 2
    bytes_per_step = model.parameters * item + sequences * context * model.kv * item
    compute_s = 2.0 * model.parameters * sequences / (device.flops * PREFILL * width)
    step_s = DECODE_STEP[on_gpu] + max(bytes_per_step / (device.bandwidth * DECODE * width), compute_s)
    decode_s = turns * waves * new * step_s
    prefilled = groups * model.prompt / engine.replicas
    prefill_s = 2.0 * model.parameters * prefilled / (device.flops * PREFILL * width)
    learned = groups * (model.prompt + completions * new) if policy in config.learning_policies else 0
    compute_s = size.flops_per_token * learned / (device.flops * TRAIN * learners)
    micro_batches = math.ceil(learned / learner.ranks / microbatch_tokens(config, on_gpu))
    host_s = HOST_LAYER * model.layers * micro_batches if on_gpu else 0.0
    learn_s = max(compute_s, host_s)
    sampled = groups * completions * new
    bandwidth = SLAB_SYNC if placement.shares_gpu else WEIGHT_SYNC
    return Throughput(
        rollout_s=decode_s + prefill_s,
        learn_s=learn_s,
        compute_s=compute_s,
        sync_s=SYNC_CALLS + model.parameters * item / bandwidth if learned else 0.0,
        moves_s=_move_seconds(config, agent, size) if on_gpu and learned else 0.0,
        sampled_per_s=sampled / (decode_s + prefill_s),
        learned_per_s=sampled / learn_s if learn_s else 0.0,
    )


def _move_seconds(config: Config, agent: AgentConfig, size: LearnerSize) -> float:
    """Return the seconds in which one learner's state moves in a step, and its engine falls asleep and wakes."""
    residency = config.resources.residency
    if residency is None or residency == "resident":
        return 0.0
    weights = FLOAT_BYTES * size.parameters / agent.learner.ranks
    state = optimizer_state_bytes(config.optimizer.optimizer, size.trained, size.rows) / agent.learner.ranks
    # In turns all state moves in, and out after the update. Streamed state moves both ways at the same time.
    moved = {"kv": 0.0, "stream": state, "turns": 2 * (weights + state)}
    return moved[residency] / BUS + ENGINE_SLEEP[residency]
