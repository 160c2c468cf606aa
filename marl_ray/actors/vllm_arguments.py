"""What vLLM is told: variables before it is imported, an engine's arguments, a request's sampling."""

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
    """Variables that must be set before anything imports vLLM.

    On CPU: no compilation (the first generation would compile C++ for 20 s), threads not bound to one NUMA
    node, as many threads as the actor has cores.
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
    """What an engine is made from. `transport` is the weight transport of `marl_ray.weights`; `drain`: requests in
    flight are finished before new weights come; `colocated`: it sleeps while a learner has its device, and from the
    start on."""

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
    """vLLM's `EngineArgs`."""
    from vllm.config.weight_transfer import WeightTransferConfig

    from marl_ray.weights.vllm_worker import BACKENDS

    arguments: dict[str, Any] = {
        "model": spec.model,
        "dtype": spec.dtype,
        "max_model_len": spec.max_length,
        "max_num_seqs": spec.max_num_seqs,
        "trust_remote_code": spec.trust_remote_code,
        "tensor_parallel_size": spec.tensor_parallel,
        # Not Ray, which vLLM would choose inside a placement group: the actor holds all of its GPUs itself.
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
        # A prefill in pieces rewinds the requests' generators, which CPU generators cannot do. Blocks smaller
        # than vLLM's default let the G requests of a group share more of their prompt.
        arguments |= {
            "enforce_eager": True,
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": spec.kv_cache_mb * 2**20,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, spec.max_length),
        }
    return arguments


def sampling_parameters(sampling: SamplingSpec, stops: list[int]) -> Any:
    """vLLM's `SamplingParams`: a group's ids and log-probabilities, all at its end, and no text."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=sampling.num_generations,
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        seed=sampling.seed,
        stop_token_ids=stops,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
