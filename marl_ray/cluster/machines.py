"""The machines that a run is planned for: devices as their data sheets have them, and nodes that hold them.

Nodes are described in words, `2x8xH100-80GB`, or in a YAML file; or they are this machine, or those of a Ray cluster.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marl_ray.core.errors import UserError
from marl_ray.core.words import did_you_mean

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True, slots=True)
class Device:
    """What computes: memory in bytes, dense bfloat16 FLOP/s of its matrix units, bytes a second of its memory."""

    name: str
    memory: float
    flops: float
    bandwidth: float


DEVICES = {
    device.name: device
    for device in (
        Device("A10G-24GB", 23_028 * MIB, 70e12, 0.600e12),
        Device("A100-40GB", 40_960 * MIB, 312e12, 1.555e12),
        Device("A100-80GB", 81_920 * MIB, 312e12, 2.039e12),
        Device("B200-180GB", 183_359 * MIB, 2250e12, 7.7e12),
        Device("H100-80GB", 81_559 * MIB, 989e12, 3.35e12),
        Device("H200-141GB", 143_771 * MIB, 989e12, 4.8e12),
        Device("L40S-48GB", 46_068 * MIB, 362e12, 0.864e12),
        Device("RTX4090-24GB", 24_564 * MIB, 165e12, 1.008e12),
    )
}
"""Without sparsity, SXM where there is a choice; memory as their drivers show it."""
CORE = Device("core", math.inf, 50e9, 10e9)
"""One core of a CPU, float32: an assumption, within a factor of two on servers of these years."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One node. `memory` is in bytes; what is not known is infinite. `device` is what its `gpus` are; None where there
    are none, or nobody knows."""

    name: str
    cpus: float = math.inf
    memory: float = math.inf
    gpus: int = 0
    device: Device | None = None

    @property
    def resources(self) -> dict[str, float]:
        """In Ray's spelling."""
        return {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})

    def __str__(self) -> str:
        cores = "" if math.isinf(self.cpus) else f"{self.cpus:g} CPUs"
        memory = "" if math.isinf(self.memory) else f"{self.memory / GIB:.1f} GiB"
        kind = self.device.name if self.device else "GPU"
        return ", ".join(part for part in (cores, memory, f"{self.gpus} x {kind}" if self.gpus else "") if part)


def device_called(name: str) -> Device:
    """`H100` is enough where there is one of that name. Raises UserError."""
    wanted = name.upper().replace("_", "-").removeprefix("NVIDIA-")
    found = [device for device in DEVICES.values() if device.name == wanted or device.name.startswith(f"{wanted}-")]
    if len(found) == 1:
        return found[0]
    known = ", ".join(DEVICES)
    if found:
        raise UserError(f"device {name} is one of {', '.join(device.name for device in found)}: say which")
    raise UserError(f"unknown device {name}{did_you_mean(wanted, DEVICES)}; known: {known}; others go into a YAML file")


def described(text: str) -> list[Machine]:
    """`NODESxDEVICESxTYPE`, or a YAML file with `nodes`. Raises UserError."""
    if text.endswith((".yaml", ".yml")):
        return _from_file(Path(text))
    nodes, _, rest = text.partition("x")
    gpus, _, kind = rest.partition("x")
    if not (nodes.isdecimal() and gpus.isdecimal() and kind and int(nodes) and int(gpus)):
        raise UserError(f"--cluster {text} is neither NODESxDEVICESxTYPE, as 2x8xH100-80GB, nor a .yaml file")
    device = device_called(kind)
    return [Machine(f"node {number}", gpus=int(gpus), device=device) for number in range(int(nodes))]


def _from_file(path: Path) -> list[Machine]:
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--cluster {path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    entries = tree.get("nodes") if isinstance(tree, dict) and set(tree) == {"nodes"} else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"--cluster {path} should have one key, nodes: a list, as - {{cpus: 96, memory_gib: 512}}")
    machines: list[Machine] = []
    for entry in entries:
        count = entry.get("count", 1) if isinstance(entry, dict) else 0
        if not isinstance(count, int) or count < 1:
            raise UserError(f"--cluster {path}: {entry} is no node, as {{count: 2, cpus: 96, gpus: 8, gpu: H100}}")
        machines += [_node(entry, f"node {len(machines) + number}", path) for number in range(count)]
    return machines


NODE_KEYS = ("count", "cpus", "memory_gib", "gpus", "gpu", "gpu_memory_gib", "gpu_tflops", "gpu_gb_per_s")


def _node(entry: Mapping[str, Any], name: str, path: Path) -> Machine:
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
        device = Device(kind, memory * GIB, flops * 1e12, bandwidth * 1e9)
    elif gpus:
        device = device_called(kind)
    memory = float(entry.get("memory_gib", math.inf)) * GIB
    return Machine(name, float(entry.get("cpus", math.inf)), memory, gpus, device)


def this_machine() -> Machine:
    """The one that this process is on, with the memory that its control group leaves it."""
    from marl_ray.cluster.local import local_gpus

    gpus = local_gpus()
    memory = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if limit.exists() and (text := limit.read_text().strip()).isdecimal():
            memory = min(memory, float(text))
    return Machine("this machine", float(len(os.sched_getaffinity(0))), memory, gpus, _gpu_here() if gpus else None)


def _gpu_here() -> Device | None:
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return _matching(found.name, float(found.total_memory))


def machines_of_cluster() -> list[Machine]:
    """Of the Ray cluster that this process has joined: all that they have, free or not."""
    import ray

    machines = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        whole = node["Resources"]
        gpus = int(whole.get("GPU", 0))
        kinds = [key.partition(":")[2] for key in whole if key.startswith("accelerator_type:")]
        device = _matching(kinds[0], None) if gpus and kinds else None
        name = f"node {node['NodeManagerAddress']}"
        machines.append(Machine(name, whole.get("CPU", 0.0), whole.get("memory", math.inf), gpus, device))
    return machines


def _matching(name: str, memory: float | None) -> Device | None:
    """The device that a driver, or Ray, calls so; of the memory that it has, where that is known."""
    words = name.upper().replace("-", " ").replace("RTX ", "RTX").split()
    found = [device for device in DEVICES.values() if device.name.partition("-")[0] in words]
    if memory is not None:
        found = [device for device in found if abs(device.memory - memory) < 0.1 * device.memory]
    elif len(found) > 1:
        found = [device for device in found if any(word.startswith(device.name.split("-")[1][:2]) for word in words)]
    return found[0] if len(found) == 1 else None
