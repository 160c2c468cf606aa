"""All uses of vLLM's private API: names that begin with an underscore, and attributes that its documentation omits.

Read in VLLM_VERSION, the only version that setup.py allows. A test compares the names with the installed vLLM's source.
Review these functions before changing the version. Importing this file imports neither vLLM nor torch, which the driver
does not load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VLLM_VERSION = "0.32.0"
PLAIN_METHODS = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod", "UnquantizedFusedMoEMethod")
"""vLLM's methods for layers that compute with their parameters, on CUDA. Some kernels for experts want the parameters
in another order, which `SlabEngine` notices when it compares the parameters with the weights."""
PLAIN_ATTENTION = ("Attention",)
"""vLLM's attention layers that derive nothing from weights. MLA multiplies weights after loading."""


def is_nccl_error(error: BaseException) -> bool:
    """Return whether an error is of NCCL's library: vLLM raises a plain RuntimeError with a fixed beginning."""
    return isinstance(error, RuntimeError) and str(error).startswith("NCCL error: ")


def update_is_active(worker: Any) -> bool:
    """Return whether a worker has started a weight update and not finished it (`vllm.v1.worker.gpu_worker`)."""
    return bool(worker._weight_update_active)


def transfer_engine(worker: Any) -> Any:
    """Return the weight-transfer engine of a worker."""
    return worker.weight_transfer_engine


def adapter_manager(worker: Any) -> Any:
    """Return the `LoRAModelManager` of a worker, which has the slots of the adapters."""
    return worker.model_runner.lora_manager._adapter_manager


def kv_cache_tensors(worker: Any) -> list[torch.Tensor]:
    """Return the tensors of a worker's KV cache. Several layers may share one storage."""
    tensors: list[torch.Tensor] = []
    for cache in worker.model_runner.kv_caches:
        if isinstance(cache, list | tuple):
            tensors.extend(cache)
        else:
            tensors.append(cache)
    return tensors


def runner_and_attention(worker: Any) -> tuple[str, str]:
    """Return the module of a worker's model runner, and the names of the attention backends of its layers."""
    runner = worker.model_runner
    backends = set()
    for layer in runner.vllm_config.compilation_config.static_forward_context.values():
        if hasattr(layer, "get_attn_backend"):
            backends.add(layer.get_attn_backend().get_name())
    module = type(runner).__module__.removeprefix("vllm.v1.worker.")
    return module, " ".join(sorted(backends))


def take_repacked_experts(model: torch.nn.Module) -> list[Any]:
    """Remove the kernels of the model's experts on a CPU, and return their modules.

    vLLM's CPU kernels compute with repacked experts, and repack only if a module has no kernel.
    """
    experts: list[Any] = []
    for module in model.modules():
        if getattr(module, "moe_kernel", None) is not None:
            module.moe_kernel = None  # type: ignore[assignment]
            experts.append(module)
    return experts


def are_repacked(experts: list[Any]) -> bool:
    """Return whether a reload has given every module of `take_repacked_experts` a new kernel."""
    return all(module.moe_kernel is not None for module in experts)
