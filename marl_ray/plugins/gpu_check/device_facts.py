"""Facts of a machine that decide which GPU code runs: driver, devices, topology and attention kernels."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import textwrap

from marl_ray.core.installed_versions import versions

QUERY_S = 120.0

_TORCH_SCRIPT = """
import torch
for i in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(i)
    print(f"GPU {i}\\t{p.name}, {p.total_memory / 2**30:.0f} GiB, compute capability {p.major}.{p.minor}")
print(f"CUDA of PyTorch\\t{torch.version.cuda}")
cuda = torch.backends.cuda
names = {"flash": cuda.flash_sdp_enabled, "memory-efficient": cuda.mem_efficient_sdp_enabled,
         "cuDNN (not in learners)": cuda.cudnn_sdp_enabled, "math": cuda.math_sdp_enabled}
print("attention kernels of PyTorch\\t" + ", ".join(name for name, enabled in names.items() if enabled()))
print(f"NCCL\\t{'.'.join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else 'not used'}")
"""


def machine_facts() -> dict[str, str]:
    """Return facts by name. A child process asks torch, so that this process allocates no GPU memory."""
    driver = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    facts = {
        "system": platform.platform(),
        "driver": driver.partition("\n")[0] or "none found",
    }
    for line in _run(sys.executable, "-c", _TORCH_SCRIPT).splitlines():
        name, tab, value = line.partition("\t")
        if tab:
            facts[name] = value
    topology = _nvidia_smi("topo", "-m")
    if topology:
        facts["topology"] = f"\n\n{textwrap.indent(topology, '      ')}\n"
    return facts | versions()


def count_gpus() -> int:
    """Return the number of GPUs that torch can use."""
    count = _run(sys.executable, "-c", "import torch; print(torch.cuda.device_count())")
    return int(count or 0)


def used_gpu_memory() -> float:
    """Return the memory in use over all GPUs in MB; 0 without nvidia-smi."""
    total = 0.0
    for line in _nvidia_smi("--query-gpu=memory.used", "--format=csv,noheader,nounits").splitlines():
        if line.strip().isdigit():
            total += float(line)
    return total


def _nvidia_smi(*arguments: str) -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    return _run("nvidia-smi", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, timeout=QUERY_S, encoding="utf-8")
    return done.stdout.strip()
