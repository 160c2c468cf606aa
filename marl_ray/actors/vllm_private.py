"""All uses of vLLM's private API by the engine: the in-process `EngineCore` behind an `LLMEngine`, and its parts.

Read in VLLM_VERSION, the only version that setup.py allows. A test compares the names with the installed vLLM's source.
Review these functions before changing the version. Importing this file does not import vLLM.

`AsyncLLM` offers some of this publicly, but always runs its core in another process ("Running EngineCore in asyncio
without multiprocessing is not currently supported", `vllm.v1.engine.core_client`), which halves the throughput on a
CPU. Its operations, and the calls of the engine in their place:

| `AsyncLLM` | here |
|---|---|
| `pause_generation("keep")`, `resume_generation` | public: `LLMEngine.sleep(0, "keep")`, `wake_up(["scheduling"])`; |
| | private: `has_steps_in_progress`, since within a process vLLM does not wait for the steps |
| `start_weight_update` to `finish_weight_update` | public: the same methods of the workers, by `collective_rpc` |
| `update_weight_version` | public: `LLMEngine.set_weight_version` |
| `compute_weight_checksums` | not used: its digests are of vLLM's fused tensors, which a learner does not have |
| `sleep`, `wake_up(tags)` | public: `LLMEngine.sleep` and `wake_up` |
| `release_kv_cache_memory` | private: `release_kv_cache`, since vLLM's method refuses while there are requests |
| `reset_prefix_cache` | private: `exclude_from_prefix_cache`, since vLLM's method discards the KV cache of running |
| | requests, which continue with it here, or does nothing while requests run |
"""

from __future__ import annotations

from typing import Any

from marl_ray.weights.vllm_private import VLLM_VERSION as VLLM_VERSION


def _core(engine: Any) -> Any:
    """Return the `EngineCore` of an `LLMEngine` within this process (`vllm.v1.engine.core_client.InprocClient`)."""
    return engine.engine_core.engine_core


def has_steps_in_progress(engine: Any) -> bool:
    """Return whether vLLM has started steps whose tokens it does not have yet. On a CPU there is no such queue."""
    return bool(_core(engine).batch_queue)


def exclude_from_prefix_cache(engine: Any, adapter: Any, salt: str) -> None:
    """Give an adapter's requests without a KV cache (new or preempted) another salt of the prefix cache, so that they
    reuse no keys and values of its old weights. `adapter` is their `LoRARequest`, or None without adapters."""
    for request in _core(engine).scheduler.waiting:
        if request.num_computed_tokens == 0 and request.lora_request == adapter:
            request.cache_salt = salt
            request.block_hashes.clear()
            request.update_block_hashes()


def release_kv_cache(engine: Any, on_gpu: bool) -> None:
    """Do what `LLMEngine.release_kv_cache_memory` does, also while there are requests. Their KV cache is recomputed
    from their tokens."""
    core = _core(engine)
    core.pause_scheduler(mode="keep", clear_cache=True)
    if on_gpu:
        core.model_executor.discard(("kv_cache",))
    else:
        engine.collective_rpc("free_kv_cache")
        core.model_executor.sleeping_tags.add("kv_cache")  # else `wake_up` would not resume the scheduler


def worker_sentinels(engine: Any) -> list[int]:
    """Return a handle for each worker process of a tensor-parallel engine, which is ready when the process has ended.

    vLLM's own `register_failure_callback` calls back after it has shut the executor down, for which it waits for the
    other workers.
    """
    return [worker.proc.sentinel for worker in engine.model_executor.workers]
