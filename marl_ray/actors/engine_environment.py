"""Environment variables of a process with a vLLM engine."""

from __future__ import annotations

import os

UTF8 = {"PYTHONUTF8": "1"}
"""vLLM and other libraries read their own text files in the encoding of the locale, which may be ASCII."""
CACHED_KERNELS = 64
"""Number of matrix multiplications that oneDNN keeps compiled on a CPU.

oneDNN compiles one per shape of the weights and number of tokens in a step, 0.6 ms and 0.3 MB each, and keeps 1024 by
default: under prompts of many lengths an engine grows by 0.3 GB, and twice that through fragmentation of the heap.
Each layer keeps its last 32 besides, so the kernels of steady numbers of tokens are not compiled again.
"""


def engine_environment(cpus: float, on_gpu: bool, local_model: bool, verbose: bool) -> dict[str, str]:
    """Return environment variables that must be set before vLLM is imported. On a CPU these disable compilation (the
    first generation would compile C++ for 20 s) and the binding of threads to one NUMA node, and bound memory."""
    environment = UTF8 | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
    if not verbose:
        environment["VLLM_LOGGING_LEVEL"] = "WARNING"
    if local_model:
        environment["HF_HUB_OFFLINE"] = "1"
    if not on_gpu:
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, round(cpus))),
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(CACHED_KERNELS),
        }
    else:
        # The fused sampler is never used, since every request has a seed and asks for processed log-probabilities.
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = os.environ.get("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return environment
