"""Settings of a vLLM engine, and vLLM's arguments for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl_ray.config import LoraConfig
from marl_ray.config.resource_sections import Residency, takes_turns

CPU_SEQUENCES = 256
"""Default number of sequences in flight on a CPU."""
MIN_FREE = 0.01
"""Share of a GPU that is free when an engine with a KV cache of known size starts."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Settings of an engine. `transport` is the weight transport.

    residency: an engine that shares its device in turns starts asleep, and sleeps while a learner uses the device.
    kv_cache_bytes: size of the KV cache on a GPU; None: what vLLM finds free of `gpu_memory_utilization`.
    lora: each request uses one of `adapters` adapters, which weight updates replace; None: the weights are merged.
    """

    model: str
    dtype: str
    max_length: int
    trust_remote_code: bool
    on_gpu: bool
    tensor_parallel: int
    gpu_memory_utilization: float
    kv_cache_mb: int
    max_num_seqs: int | None
    transport: str
    residency: Residency | None = None
    kv_cache_bytes: int | None = None
    lora: LoraConfig | None = None
    adapters: int = 1

    @property
    def sleeps(self) -> bool:
        """Whether the engine releases memory while a learner uses the device."""
        return takes_turns(self.residency)


def engine_arguments(spec: EngineSpec) -> dict[str, Any]:
    """Return the arguments of vLLM's `EngineArgs`."""
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.config.weight_transfer import WeightTransferConfig

    from marl_ray.weights.vllm_adapters import adapter_arguments
    from marl_ray.weights.vllm_worker import BACKENDS

    arguments: dict[str, Any] = {
        "model": spec.model,
        "dtype": spec.dtype,
        "max_model_len": spec.max_length,
        "max_num_seqs": spec.max_num_seqs,
        "trust_remote_code": spec.trust_remote_code,
        "tensor_parallel_size": spec.tensor_parallel,
        # vLLM would choose Ray inside a placement group, but the actor holds all of its GPUs itself.
        "distributed_executor_backend": "mp" if spec.tensor_parallel > 1 else "uni",
        "logprobs_mode": "processed_logprobs",
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "worker_extension_cls": "marl_ray.weights.vllm_worker.WorkerExtension",
        "weight_transfer_config": WeightTransferConfig(backend=BACKENDS[spec.transport]),
        # As `marl_ray.learning.json_grammars`. Small models would write whitespace without end.
        "structured_outputs_config": StructuredOutputsConfig(backend="xgrammar", disable_any_whitespace=True),
    }
    if spec.lora is not None:
        arguments |= adapter_arguments(spec.model, spec.trust_remote_code, spec.lora, spec.adapters)
    if spec.on_gpu:
        arguments["gpu_memory_utilization"] = spec.gpu_memory_utilization
        if spec.kv_cache_bytes is not None:
            # vLLM takes the size as given, and neither measures memory nor waits for other processes on the GPU. It
            # still refuses to start unless this share of the GPU is free.
            arguments["kv_cache_memory_bytes"] = spec.kv_cache_bytes
            arguments["gpu_memory_utilization"] = MIN_FREE
        arguments["enable_sleep_mode"] = spec.sleeps
        arguments["enable_flashinfer_autotune"] = False  # would compile and time kernels at every start
    else:
        # Chunked prefill rewinds random number generators, which is not supported on a CPU. Blocks smaller than
        # vLLM's default let the requests of a group share more of their prompt.
        arguments |= {
            "enforce_eager": True,
            "block_size": 32,
            "kv_cache_memory_bytes": spec.kv_cache_mb * 2**20,
            "enable_chunked_prefill": False,
            "max_num_seqs": spec.max_num_seqs or CPU_SEQUENCES,
            "max_num_batched_tokens": max(8192, spec.max_length),
        }
    return arguments
