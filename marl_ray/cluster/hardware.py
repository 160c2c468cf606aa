"""Hardware that a run is planned for: GPU data sheets, and nodes from the command line, a file or a Ray cluster."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marl_ray.core.errors import UserError
from marl_ray.core.text import did_you_mean

MIB = 2**20
GIB = 2**30


def gib(size: float) -> str:
    """Return a number of bytes in words.

    Example:
        >>> gib(1.5 * GIB)
        '1.5 GiB'
    """
    return f"{size / GIB:.1f} GiB"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A compute device: memory in bytes, dense bfloat16 FLOP/s, and memory bandwidth in bytes per second."""

    name: str
    memory: float
    flops: float
    bandwidth: float


_DATA_SHEETS = (
    DeviceSpec("A10G-24GB", 23_028 * MIB, 70e12, 0.600e12),
    DeviceSpec("A100-40GB", 40_960 * MIB, 312e12, 1.555e12),
    DeviceSpec("A100-80GB", 81_920 * MIB, 312e12, 2.039e12),
    DeviceSpec("B200-180GB", 183_359 * MIB, 2250e12, 7.7e12),
    DeviceSpec("H100-80GB", 81_559 * MIB, 989e12, 3.35e12),
    DeviceSpec("H200-141GB", 143_771 * MIB, 989e12, 4.8e12),
    DeviceSpec("L40S-48GB", 46_068 * MIB, 362e12, 0.864e12),
    DeviceSpec("RTX4090-24GB", 24_564 * MIB, 165e12, 1.008e12),
)
DEVICES = {device.name: device for device in _DATA_SHEETS}
"""Data-sheet values without sparsity, SXM variants where there are several; memory as reported by the driver."""
CPU_CORE = DeviceSpec("core", math.inf, 50e9, 10e9)
"""One CPU core in float32. An assumption, within a factor of two on current servers."""
ACCELERATOR = "accelerator_type:"
"""Beginning of the names of Ray's resources that stand for a type of GPU."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. `memory` is in bytes; unknown amounts are infinite. `device` is None without GPUs or if unknown."""

    name: str
    cpus: float = math.inf
    memory: float = math.inf
    gpus: int = 0
    device: DeviceSpec | None = None

    @property
    def resources(self) -> dict[str, float]:
        """CPUs and GPUs under Ray's resource names."""
        resources = {"CPU": self.cpus}
        if self.gpus:
            resources["GPU"] = float(self.gpus)
        return resources

    @property
    def device_memory(self) -> float:
        """Bytes of one GPU; infinite if its type is unknown."""
        return self.device.memory if self.device else math.inf

    def __str__(self) -> str:
        parts = []
        if math.isfinite(self.cpus):
            parts.append(f"{self.cpus:g} CPUs")
        if math.isfinite(self.memory):
            parts.append(gib(self.memory))
        if self.gpus:
            kind = self.device.name if self.device else "GPU"
            parts.append(f"{self.gpus} x {kind}")
        return ", ".join(parts)


def total_gpus(nodes: Sequence[NodeSpec]) -> int:
    """Return the number of GPUs of all nodes."""
    return sum(node.gpus for node in nodes)


def find_device(name: str) -> DeviceSpec:
    """Return the device of that name, or the only one whose name starts with it (`H100`). Raises UserError."""
    wanted = name.upper().replace("_", "-").removeprefix("NVIDIA-")
    matches = [device for device in DEVICES if f"{device}-".startswith(f"{wanted}-")]
    if len(matches) == 1:
        return DEVICES[matches[0]]
    if matches:
        raise UserError(f"device {name} is ambiguous: choose one of {', '.join(matches)}")
    known = f"{did_you_mean(wanted, DEVICES)}; known: {', '.join(DEVICES)}"
    raise UserError(f"unknown device {name}{known}; describe others in a YAML file")


def parse_cluster(text: str) -> list[NodeSpec]:
    """Return the nodes of `NODESxDEVICESxTYPE`, or of a YAML file with a list `nodes`. Raises UserError.

    Example:
        >>> [(node.name, str(node)) for node in parse_cluster("2x8xH100")]
        [('node 0', '8 x H100-80GB'), ('node 1', '8 x H100-80GB')]
    """
    if text.endswith((".yaml", ".yml")):
        return _read_nodes(Path(text))
    match = re.fullmatch(r"0*([1-9]\d*)x0*([1-9]\d*)x(.+)", text)
    if match is None:
        raise UserError(f"--cluster {text} is neither NODESxDEVICESxTYPE, as 2x8xH100-80GB, nor a .yaml file")
    count = int(match[1])
    gpus = int(match[2])
    device = find_device(match[3])
    return [NodeSpec(f"node {number}", gpus=gpus, device=device) for number in range(count)]


def _read_nodes(path: Path) -> list[NodeSpec]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--cluster {path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    entries = None
    if isinstance(tree, dict) and set(tree) == {"nodes"}:
        entries = tree["nodes"]
    if not isinstance(entries, list) or not entries:
        raise UserError(f"--cluster {path} should have one key, nodes: a list, as - {{cpus: 96, memory_gib: 512}}")
    nodes: list[NodeSpec] = []
    for entry in entries:
        count = entry.get("count", 1) if isinstance(entry, dict) else 0
        if not isinstance(count, int) or count < 1:
            raise UserError(f"--cluster {path}: {entry} is no node, as {{count: 2, cpus: 96, gpus: 8, gpu: H100}}")
        for _ in range(count):
            nodes.append(_parse_node(entry, f"node {len(nodes)}", path))
    return nodes


GPU_KEYS = ("gpu_memory_gib", "gpu_tflops", "gpu_gb_per_s")
"""Keys that describe a GPU without a data sheet here."""
NODE_KEYS = ("count", "cpus", "memory_gib", "gpus", "gpu", *GPU_KEYS)


def _parse_node(entry: Mapping[str, Any], name: str, path: Path) -> NodeSpec:
    for key, value in entry.items():
        if key not in NODE_KEYS:
            raise UserError(f"--cluster {path}: unknown key {key}{did_you_mean(str(key), NODE_KEYS)}")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key != "gpu" and (not is_number or value < 0):
            raise UserError(f"--cluster {path}: {key} should be a number, not {value!r}")
    gpus = int(entry.get("gpus", 0))
    kind = str(entry.get("gpu", "GPU"))
    device = None
    if gpus and entry.keys() >= set(GPU_KEYS):
        memory, flops, bandwidth = [float(entry[key]) for key in GPU_KEYS]
        device = DeviceSpec(kind, memory * GIB, flops * 1e12, bandwidth * 1e9)
    elif gpus:
        device = find_device(kind)
    cpus = float(entry.get("cpus", math.inf))
    memory = float(entry.get("memory_gib", math.inf)) * GIB
    return NodeSpec(name, cpus, memory, gpus, device)


def local_node() -> NodeSpec:
    """Return this machine, with its memory limited by the control group of this process."""
    from marl_ray.cluster.ray_private import visible_gpu_count, visible_gpu_type

    gpus = visible_gpu_count()
    memory = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    # The limits of version 2 and of version 1 of control groups.
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if limit.exists():
            text = limit.read_text(encoding="utf-8").strip()
            if text.isdecimal():  # else `max`
                memory = min(memory, float(text))
    device = _match_ray_type([visible_gpu_type()]) if gpus else None
    cpus = float(len(os.sched_getaffinity(0)))
    return NodeSpec("this machine", cpus, memory, gpus, device)


def cluster_nodes() -> list[NodeSpec]:
    """Return the live nodes of the connected Ray cluster with their total resources, free or in use."""
    import ray

    nodes = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        total = node["Resources"]
        cpus = total.get("CPU", 0.0)
        memory = total.get("memory", math.inf)
        gpus = int(total.get("GPU", 0))
        device = _match_ray_type(accelerator_types(total)) if gpus else None
        nodes.append(NodeSpec(f"node {node['NodeManagerAddress']}", cpus, memory, gpus, device))
    return nodes


def accelerator_types(resources: Mapping[str, float]) -> list[str]:
    """Return the types of GPUs among a node's or a cluster's resources, which Ray writes into their names."""
    return [name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR)]


def _match_ray_type(types: Sequence[str]) -> DeviceSpec | None:
    """Return the device for Ray's accelerator types (`A100-40G`, `GeForce-RTX-4090`); the smallest if several match."""
    matches: list[DeviceSpec] = []
    for kind in types:
        words = kind.upper().replace("RTX-", "RTX").split("-")
        alike = [device for device in DEVICES.values() if device.name.partition("-")[0] in words]
        # The last word may be the size: `A100-40G`.
        of_size = [device for device in alike if device.name.endswith(f"-{words[-1]}B")]
        matches += of_size or alike
    return min(matches, key=lambda device: device.memory, default=None)
