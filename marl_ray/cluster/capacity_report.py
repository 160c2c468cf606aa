"""A plan_capacity in words and columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from marl_ray.cluster.capacity_plan import (
    ActorPlacement,
    CapacityPlan,
    ModelInfos,
    estimate_throughputs,
    suggest_settings,
)
from marl_ray.cluster.hardware import CPU_CORE, GIB
from marl_ray.cluster.placement_plan import describe_shortage
from marl_ray.cluster.throughput import DECODE, PREFILL, PUBLISH, TRAIN, Throughput
from marl_ray.config import Config
from marl_ray.core.ids import PolicyId

NAME, COLUMN = 22, 12
PARTS = (
    *("process", "programs", "CUDA", "weights", "gradients", "optimizer", "gathered", "reference", "critic"),
    *("activations", "logits", "allocator", "reload", "KV cache", "buffers", "published", "sent before"),
)
"""In the order of the columns."""


def report_lines(config: Config, models: ModelInfos, found: CapacityPlan) -> list[str]:
    """What each actor needs and where it goes, what that comes to on each node, and how long a step may take."""
    if found.placed is None:
        return []
    on_gpus = any(one.need and one.need.device for one in found.placed)
    lines = ["memory of the processes at most, GiB:", *_table(found, [one for one in found.placed if one.need], False)]
    if on_gpus:
        lines += ["memory of the GPUs at most, GiB:"]
        lines += _table(found, [one for one in found.placed if one.need and one.need.device], True)
    unknown = [str(one.owner) for one in found.placed if one.need is None]
    if unknown:
        lines.append(f"not counted, for want of sizes: {', '.join(unknown)}")
    lines += ["on the nodes:", *_nodes(found)]
    estimates = estimate_throughputs(config, models, found)
    if estimates:
        lines += ["a step at most, roughly:", *_speeds(estimates), assumptions(models)]
    return lines


def shortage_message(config: Config, models: ModelInfos, found: CapacityPlan) -> str:
    """One line: what does not fit, and what to change; empty where all does."""
    if found.placed is None:
        return describe_shortage(found.plan, [machine.resources for machine in found.machines])
    if not found.shortages:
        return ""
    first, *others = found.shortages
    more = f" (and {len(others)} more)" if others else ""
    settings, enough = suggest_settings(config, models, found.machines)
    if enough:
        return f"this run does not fit: {first}{more}. It fits with {', '.join(settings)}"
    tried = f"; less is needed with {', '.join(settings)}" if settings else ""
    return (
        f"this run does not fit: {first}{more}. No setting known here is enough{tried}: take a smaller model, or plan "
        "for larger machines with --cluster"
    )


def _table(found: CapacityPlan, rows: Sequence[ActorPlacement], on_gpu: bool) -> list[str]:
    """An actor a line, a part a column; equal sandbox workers are one line."""
    there: set[str] = set()
    known: list[tuple[str, Mapping[str, float], str]] = []
    sandboxes: dict[int, list[ActorPlacement]] = {}
    for one in rows:
        assert one.need is not None
        of_part = one.need.device if on_gpu else one.need.host
        there |= of_part.keys()
        if one.owner.kind == "sandbox":
            sandboxes.setdefault(one.node, []).append(one)
            continue
        known.append((str(one.owner), of_part, _where(found, one)))
    for of_node in sandboxes.values():
        need = of_node[0].need
        assert need is not None
        known.append((f"{len(of_node)} x sandbox, each", need.host, _where(found, of_node[0])))
    parts = [part for part in PARTS if part in there]
    lines = [f"  {'':<{NAME}}" + "".join(f"{part:>{COLUMN}}" for part in (*parts, "total")) + "  on"]
    for name, of_part, where in known:
        cells = (f"{of_part[part] / GIB:.2f}" if part in of_part else "-" for part in parts)
        total = f"{sum(of_part.values()) / GIB:.2f}"
        lines.append(f"  {name:<{NAME}}" + "".join(f"{cell:>{COLUMN}}" for cell in (*cells, total)) + f"  {where}")
    return lines


def _where(found: CapacityPlan, one: ActorPlacement) -> str:
    node = found.machines[one.node].name
    return f"{node}, GPU {' and '.join(map(str, one.gpus))}" if one.gpus else node


def _nodes(found: CapacityPlan) -> list[str]:
    assert found.placed is not None
    lines = []
    for index, machine in enumerate(found.machines):
        cpus = sum(slot.cpus for number, slot in enumerate(found.plan.slots) if _node_of(found, number) == index)
        parts = [f"{cpus:g}{_of(machine.cpus, '{:g}')} CPUs", f"{_size(found.host(index), machine.memory)} of memory"]
        memory = machine.device.memory if machine.device else math.inf
        parts += [
            f"GPU {number}: {_size(used, memory)}"
            for number in range(machine.gpus)
            if (used := found.gpu(index, number))
        ]
        lines.append(
            f"  {machine.name} ({machine}): " + ", ".join(parts) + (", Ray and the driver counted" if not index else "")
        )
    return lines


def _node_of(found: CapacityPlan, slot: int) -> int:
    owner = found.plan.slots[slot].owners[0]
    return next(one.node for one in found.placed or () if one.owner == owner)


def _of(whole: float, form: str) -> str:
    return "" if math.isinf(whole) else f" of {form.format(whole)}"


def _size(memory: float, whole: float) -> str:
    return f"{memory / GIB:.1f}{_of(whole / GIB, '{:.1f}')} GiB"


def _speeds(estimates: Mapping[PolicyId, Throughput]) -> list[str]:
    lines = []
    for policy, one in estimates.items():
        lines.append(
            f"  {policy}: sampling {_seconds(one.rollout_s)} ({one.sampled_per_s:,.0f} tokens/s), learning "
            f"{_seconds(one.learn_s)} ({one.learned_per_s:,.0f} tokens/s), publishing {_seconds(one.publish_s)}"
        )
    slowest = max(one.step_s for one in estimates.values())
    lines.append(f"  {_seconds(slowest)} a step, agents side by side, one part after the other, without the sandbox")
    return lines


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:,.0f} s"


def assumptions(models: ModelInfos) -> str:
    """What the estimate takes for granted."""
    prompts = sorted({model.prompt for model in models.values()})
    return (
        f"  assumed: prompts of {' or '.join(map(str, prompts))} tokens, completions as long as they may be; engines "
        f"decode at {DECODE:.0%} of a device's bandwidth and read prompts at {PREFILL:.0%} of its FLOP/s, learners "
        f"reach {TRAIN:.0%}; weights travel at {PUBLISH / 1e9:g} GB/s; a core has {CPU_CORE.flops / 1e9:g} GFLOP/s and "
        f"{CPU_CORE.bandwidth / 1e9:g} GB/s"
    )
