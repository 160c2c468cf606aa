"""The device of an actor, and the reason if CUDA does not start on it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import torch

from marl_ray.core.errors import UserError

DRIVER_FILE = Path("/proc/driver/nvidia/version")
"""Description of the kernel's driver."""


def choose_device(on_gpu: bool) -> torch.device:
    """Return the CPU, or this process's GPU with `on_gpu`. Raises UserError if CUDA does not start."""
    if not on_gpu:
        return torch.device("cpu")
    with warnings.catch_warnings(action="ignore"):  # the reason is in the error
        if torch.cuda.is_available():
            return torch.device("cuda")
        try:
            torch.cuda.init()
            reason = "no GPU is visible"
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition(".")[0]  # the first sentence
    raise UserError(
        f"this actor has a GPU, but CUDA does not start ({reason}): {describe_driver()}, PyTorch {torch.__version__} "
        f"for CUDA {torch.version.cuda or 'none'}. Install a driver for this CUDA version (docs/how-to/cluster.md), or "
        "set resources.generator.gpus and resources.learner.gpus to 0"
    )


def describe_driver() -> str:
    """Return the version of the NVIDIA driver."""
    if not DRIVER_FILE.exists():
        return "no NVIDIA driver"
    version = re.search(r"\d+\.\d+(\.\d+)?", DRIVER_FILE.read_text(encoding="utf-8"))
    return f"NVIDIA driver {version[0]}" if version else "no NVIDIA driver"
