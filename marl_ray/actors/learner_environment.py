"""Environment variables of a process with a learner."""

from __future__ import annotations

import os

from marl_ray.actors.engine_environment import UTF8
from marl_ray.cluster.placement_plan import AgentPlacement


def learner_environment(threads: int, placement: AgentPlacement) -> dict[str, str]:
    """Return the environment variables of a learner. Ray lets actors without GPUs see all GPUs of their node."""
    environment = {**UTF8, "OMP_NUM_THREADS": str(threads)}
    if not placement.learner_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
        return environment
    # PyTorch rounds pinned buffers up to powers of two: the state of a model of 7B would take 1.9 times its size.
    settings = ["pinned_max_round_threshold_mb:1"]
    if placement.transport == "nccl":
        # Micro-batches have new shapes in each step.
        settings.append("expandable_segments:True")
    chosen = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
    if chosen:
        settings.append(chosen)  # of two values PyTorch takes the last one
        if placement.transport == "ipc" and "expandable_segments" in chosen:
            # CUDA IPC cannot export memory in such segments.
            settings.append("expandable_segments:False")
    environment["PYTORCH_ALLOC_CONF"] = ",".join(settings)
    return environment
