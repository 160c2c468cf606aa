"""Models of vLLM on the CPU without an engine, with layers that compute with their parameters as on CUDA."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from marl_ray.models.tokenization import load_tokenizer
from marl_ray.toy import BASE_PATH


@contextmanager
def vllm_on_cpu() -> Iterator[None]:
    """Make the one process group that vLLM's layers need, within the context."""
    from vllm.distributed import parallel_state

    with tempfile.TemporaryDirectory() as folder:
        method = f"file://{folder}/store"
        parallel_state.init_distributed_environment(1, 0, method, 0, backend="gloo")
        try:
            yield
        finally:
            parallel_state.cleanup_dist_env_and_memory()


def make_models(config: PretrainedConfig, folder: Path) -> tuple[Any, Any, Any]:
    """Return a transformers model in bfloat16, vLLM's model of the same architecture with other weights, and vLLM's
    configuration."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed.parallel_state import destroy_model_parallel, ensure_model_parallel_initialized
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    from marl_ray.config import ModelConfig

    torch.manual_seed(0)
    trained = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    trained.save_pretrained(folder)
    load_tokenizer(str(BASE_PATH), ModelConfig()).save_pretrained(folder)
    arguments = EngineArgs(str(folder), dtype="bfloat16", max_model_len=64, enforce_eager=True)
    vllm_config = arguments.create_engine_config()
    with set_current_vllm_config(vllm_config), set_default_torch_dtype(torch.bfloat16):
        destroy_model_parallel()  # experts have a group of their own
        ensure_model_parallel_initialized(1, 1)
        served = initialize_model(vllm_config)
        record_metadata_for_reloading(served)
    with torch.no_grad():
        for parameter in served.parameters():
            parameter.fill_(0.5)
    return trained, served, vllm_config
