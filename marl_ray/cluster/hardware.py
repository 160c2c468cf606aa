"""The machines that a run is planned for: devices as their data sheets have them, and nodes that hold them.

Nodes are described in words, `2x8xH100-80GB`, or in a YAML file; or they are this machine, or those of a Ray cluster.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marl_ray.core.errors import UserError
from marl_ray.core.text import did_you_mean

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What computes: memory in bytes, dense bfloat16 FLOP/s of its matrix units, bytes a second of its memory."""

    name: str
    memory: float
    flops: float
    bandwidth: float


DEVICES = {
    device.name: device
    for device in (
        DeviceSpec("A10G-24GB", 23_028 * MIB, 70e12, 0.600e12),
        DeviceSpec("A100-40GB", 40_960 * MIB, 312e12, 1.555e12),
        DeviceSpec("A100-80GB", 81_920 * MIB, 312e12, 2.039e12),
        DeviceSpec("B200-180GB", 183_359 * MIB, 2250e12, 7.7e12),
        DeviceSpec("H100-80GB", 81_559 * MIB, 989e12, 3.35e12),
        DeviceSpec("H200-141GB", 143_771 * MIB, 989e12, 4.8e12),
        DeviceSpec("L40S-48GB", 46_068 * MIB, 362e12, 0.864e12),
        DeviceSpec("RTX4090-24GB", 24_564 * MIB, 165e12, 1.008e12),
    )
}
"""Without sparsity, SXM where there is a choice; memory as their drivers show it."""
CPU_CORE = DeviceSpec("core", math.inf, 50e9, 10e9)
"""One core of a CPU, float32: an assumption, within a factor of two on servers of these years."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. `memory` is in bytes; what is not known is infinite. `device` is what its `gpus` are; None where there
    are none, or nobody knows."""

    name: str
    cpus: float = math.inf
    memory: float = math.inf
    gpus: int = 0
    device: DeviceSpec | None = None

    @property
    def resources(self) -> dict[str, float]:
        """In Ray's spelling."""
        return {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def __str__(self) -> str:
        cores = "" if math.isinf(self.cpus) else f"{self.cpus:g} CPUs"
        memory = "" if math.isinf(self.memory) else f"{self.memory / GIB:.1f} GiB"
        kind = self.device.name if self.device else "GPU"
        return ", ".join(part for part in (cores, memory, f"{self.gpus} x {kind}" if self.gpus else "") if part)


def find_device(name: str) -> DeviceSpec:
    """`H100` is enough where there is one of that name. Raises UserError."""
    wanted = name.upper().replace("_", "-").removeprefix("NVIDIA-")
    found = [device for device in DEVICES.values() if device.name == wanted or device.name.startswith(f"{wanted}-")]
    if len(found) == 1:
        return found[0]
    known = ", ".join(DEVICES)
    if found:
        raise UserError(f"device {name} is one of {', '.join(device.name for device in found)}: say which")
    raise UserError(f"unknown device {name}{did_you_mean(wanted, DEVICES)}; known: {known}; others go into a YAML file")


def parse_cluster(text: str) -> list[NodeSpec]:
    """`NODESxDEVICESxTYPE`, or a YAML file with `nodes`. Raises UserError."""
    if text.endswith((".yaml", ".yml")):
        return _from_file(Path(text))
    nodes, _, rest = text.partition("x")
    gpus, _, kind = rest.partition("x")
    if not (nodes.isdecimal() and gpus.isdecimal() and kind and int(nodes) and int(gpus)):
        raise UserError(f"--cluster {text} is neither NODESxDEVICESxTYPE, as 2x8xH100-80GB, nor a .yaml file")
    device = find_device(kind)
    return [NodeSpec(f"node {number}", gpus=int(gpus), device=device) for number in range(int(nodes))]


def _from_file(path: Path) -> list[NodeSpec]:
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--cluster {path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    entries = tree.get("nodes") if isinstance(tree, dict) and set(tree) == {"nodes"} else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"--cluster {path} should have one key, nodes: a list, as - {{cpus: 96, memory_gib: 512}}")
    machines: list[NodeSpec] = []
    for entry in entries:
        count = entry.get("count", 1) if isinstance(entry, dict) else 0
        if not isinstance(count, int) or count < 1:
            raise UserError(f"--cluster {path}: {entry} is no node, as {{count: 2, cpus: 96, gpus: 8, gpu: H100}}")
        machines += [_node(entry, f"node {len(machines) + number}", path) for number in range(count)]
    return machines


NODE_KEYS = ("count", "cpus", "memory_gib", "gpus", "gpu", "gpu_memory_gib", "gpu_tflops", "gpu_gb_per_s")


def _node(entry: Mapping[str, Any], name: str, path: Path) -> NodeSpec:
    for key in entry:
        if key not in NODE_KEYS:
            raise UserError(f"--cluster {path}: unknown key {key}{did_you_mean(str(key), NODE_KEYS)}")
    numbers = {key: value for key, value in entry.items() if key != "gpu"}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise UserError(f"--cluster {path}: {key} should be a number, not {value!r}")
    gpus, kind = int(entry.get("gpus", 0)), str(entry.get("gpu", "GPU"))
    given = [numbers.get(key) for key in NODE_KEYS[-3:]]
    device = None
    if gpus and all(value is not None for value in given):
        memory, flops, bandwidth = (float(value) for value in given if value is not None)
        device = DeviceSpec(kind, memory * GIB, flops * 1e12, bandwidth * 1e9)
    elif gpus:
        device = find_device(kind)
    memory = float(entry.get("memory_gib", math.inf)) * GIB
    return NodeSpec(name, float(entry.get("cpus", math.inf)), memory, gpus, device)


def local_node() -> NodeSpec:
    """The one that this process is on, with the memory that its control group leaves it."""
    from marl_ray.cluster.ray_connection import local_gpu_type, local_gpus

    gpus = local_gpus()
    memory = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if limit.exists() and (text := limit.read_text().strip()).isdecimal():
            memory = min(memory, float(text))
    device = _matching([local_gpu_type()]) if gpus else None
    return NodeSpec("this machine", float(len(os.sched_getaffinity(0))), memory, gpus, device)


def cluster_nodes() -> list[NodeSpec]:
    """Of the Ray cluster that this process has joined: all that they have, free or not."""
    import ray

    machines = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        whole = node["Resources"]
        gpus = int(whole.get("GPU", 0))
        kinds = [key.partition(":")[2] for key in whole if key.startswith("accelerator_type:")]
        name = f"node {node['NodeManagerAddress']}"
        device = _matching(kinds) if gpus else None
        machines.append(NodeSpec(name, whole.get("CPU", 0.0), whole.get("memory", math.inf), gpus, device))
    return machines


def _matching(kinds: Sequence[str]) -> DeviceSpec | None:
    """The device that Ray calls so, as `A100-40G` or `GeForce-RTX-4090`; the smallest where it may be several."""
    found = []
    for kind in kinds:
        words = kind.upper().replace("RTX-", "RTX").split("-")
        alike = [device for device in DEVICES.values() if device.name.partition("-")[0] in words]
        found += [device for device in alike if device.name.endswith(f"-{words[-1]}B")] or alike
    return min(found, key=lambda device: device.memory, default=None)
