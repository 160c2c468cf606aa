"""What a run runs on, for its folder: versions, and the machines of its cluster."""

from __future__ import annotations

import os
import platform
from typing import Any

import ray

from marl_ray.core.installed_versions import versions


def describe_cluster() -> dict[str, Any]:
    """Plain data; of the cluster that this process is connected to. Memory in GiB."""
    whole = ray.cluster_resources()
    return {
        "versions": versions(),
        "driver": {"system": platform.platform(), "cpus": os.cpu_count()},
        "cluster": {
            "nodes": sum(node["Alive"] for node in ray.nodes()),
            "cpus": whole.get("CPU", 0.0),
            "gpus": whole.get("GPU", 0.0),
            "gpu_types": sorted(name.partition(":")[2] for name in whole if name.startswith("accelerator_type:")),
            "memory_gib": round(whole.get("memory", 0.0) / 2**30, 1),
        },
    }
