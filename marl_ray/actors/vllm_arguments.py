"""Arguments of vLLM: environment variables, engine arguments and sampling parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import SamplingSpec

COMMON_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
}
CPU_BATCHED_TOKENS = 8192
CPU_BLOCK_TOKENS = 32


def engine_environment(cpus: float, on_gpu: bool, local_model: bool, verbose: bool) -> dict[str, str]:
    """Return environment variables that must be set before vLLM is imported.

    On a CPU these disable compilation (the first generation would compile C++ for 20 s) and the binding of threads to
    one NUMA node, and set one thread per core of the actor.
    """
    environment = dict(COMMON_ENVIRONMENT)
    if not verbose:
        environment["VLLM_LOGGING_LEVEL"] = "WARNING"
    if local_model:
        environment["HF_HUB_OFFLINE"] = "1"
    if not on_gpu:
        environment |= {
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, round(cpus))),
        }
    return environment


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Settings of an engine. `transport` is the weight transport. With `drain`, requests in flight are finished before
    weights are updated. A `colocated` engine starts asleep, and sleeps while a learner uses its device."""

    model: str
    dtype: str
    max_length: int
    trust_remote_code: bool
    on_gpu: bool
    tensor_parallel: int
    gpu_memory_utilization: float
    kv_cache_mb: int
    max_num_seqs: int
    transport: str
    drain: bool = False
    colocated: bool = False


def engine_arguments(spec: EngineSpec) -> dict[str, Any]:
    """Return the arguments of vLLM's `EngineArgs`."""
    from vllm.config.weight_transfer import WeightTransferConfig

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
    }
    if spec.on_gpu:
        arguments["gpu_memory_utilization"] = spec.gpu_memory_utilization
        arguments["enable_sleep_mode"] = spec.colocated
    else:
        # Chunked prefill rewinds random number generators, which is not supported on a CPU. Blocks smaller than
        # vLLM's default let the requests of a group share more of their prompt.
        arguments |= {
            "enforce_eager": True,
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": spec.kv_cache_mb * 2**20,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, spec.max_length),
        }
    return arguments


def sampling_parameters(sampling: SamplingSpec, stop_ids: list[int]) -> Any:
    """Return vLLM's `SamplingParams`: token ids and log-probabilities of a group, returned when all are finished."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=sampling.num_generations,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        seed=sampling.seed,
        stop_token_ids=stop_ids,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
