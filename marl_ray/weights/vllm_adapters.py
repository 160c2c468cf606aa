"""Adapters inside vLLM's workers: loaded from the memory of a weight update, without files.

vLLM has one slot of its stacked matrices per adapter. An update replaces the content of the slot, so requests in flight
continue with the new adapter. vLLM's prefix cache knows an adapter by its name only; the salt of `Engine` excludes
entries of earlier versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from vllm.config.lora import MaxLoRARanks
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.request import LoRARequest
from vllm.lora.utils import is_moe_model, parse_fine_tuned_lora_name

from marl_ray.config import LoraConfig
from marl_ray.core.errors import UserError
from marl_ray.weights.adapter_source import adapter_layers
from marl_ray.weights.deltas import Checksum, WeightUpdate, to_tensor


def _vllm_id(number: int) -> int:
    """Return vLLM's id of adapter `number`. Our numbers start at 0, and vLLM's at 1."""
    return number + 1


def adapter_arguments(model: str, trust_remote_code: bool, lora: LoraConfig, number: int) -> dict[str, Any]:
    """Return the arguments of vLLM's `EngineArgs` for a number of adapters. Raises UserError for layers that do not
    exist."""
    layers = adapter_layers(model, trust_remote_code, lora)
    served_ranks = [rank for rank in get_args(MaxLoRARanks) if rank >= lora.rank]
    last_names = {layer.rpartition(".")[2] for layer in layers}
    return {
        "enable_lora": True,
        "max_loras": number,
        # vLLM accepts some ranks only. Matrices of a smaller rank are filled up with zeros.
        "max_lora_rank": min(served_ranks),
        # By default vLLM also multiplies the zeros of all other layers, of which the output layer is the largest.
        "lora_target_modules": sorted(last_names),
    }


def adapter_requests(
    engine: Any, model: str, trust_remote_code: bool, lora: LoraConfig, number: int
) -> list[LoRARequest]:
    """Return the names of a number of adapters for requests to vLLM's `LLMEngine`. Raises UserError if the engine would
    ignore the adapter of a layer."""
    layers = adapter_layers(model, trust_remote_code, lora)
    unserved = engine.collective_rpc("unserved_layers", args=(layers,))[0]
    if unserved:
        raise UserError(
            f"vLLM serves no adapters of {unserved[0]} ({len(unserved)} of {len(layers)} layers with an adapter): set "
            "lora.in_engine to false, or lora.targets to other layers"
        )
    # Nothing is read from the path: an update has loaded an adapter before its first request.
    return [LoRARequest(f"adapter {n}", _vllm_id(n), "memory") for n in range(number)]


def unserved_layers(manager: Any, layers: Sequence[str]) -> list[str]:
    """Return the layers, named as in the model's files, that have no counterpart in vLLM's `LoRAModelManager`, which
    would ignore their adapters."""
    if manager.device.type == "cpu" and is_moe_model(manager.model):
        return list(layers)  # beside adapters, vLLM computes experts by Triton's kernels only
    served = set(manager.modules)
    for parts in manager.packed_modules.values():
        served.update(parts)  # vLLM computes layers such as q_proj, k_proj and v_proj together
    unserved = []
    for layer in layers:
        name, _ = _vllm_name(manager, f"{layer}.lora_A.weight")
        if name not in served:
            unserved.append(layer)
    return unserved


def load_adapter(manager: Any, number: int, update: WeightUpdate) -> int:
    """Replace adapter `number` in vLLM's `LoRAModelManager`, and return the checksum of the received tensors."""
    assert update.adapter_scale is not None, "the update has an adapter"
    checksum = Checksum()
    received = ((delta.name, to_tensor(delta)) for delta in update.deltas)
    a_of: dict[str, torch.Tensor] = {}
    b_of: dict[str, torch.Tensor] = {}
    for name, tensor in checksum.watch(received):
        layer, is_a = _vllm_name(manager, name)
        factors = a_of if is_a else b_of
        # A copy, because the tensor is read-only and vLLM multiplies B by the scale in place.
        factors[layer] = tensor.clone()
    layers = {}
    for layer, a in a_of.items():
        rank = len(a)
        # The 0 is peft's alpha, which vLLM does not read where there is a scaling.
        layers[layer] = LoRALayerWeights(layer, rank, 0, a, b_of[layer], scaling=update.adapter_scale)
    adapter = LoRAModel(_vllm_id(number), rank, layers)
    manager.remove_adapter(adapter.id)
    manager.add_adapter(adapter)
    manager.activate_adapter(adapter.id)
    return checksum.value


def _vllm_name(manager: Any, name: str) -> tuple[str, bool]:
    """Return vLLM's name of the layer of an adapter's tensor, and whether the tensor is A."""
    mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
    if mapper is not None:
        mapper = mapper.get_rename_mapper()
    return parse_fine_tuned_lora_name(f"base_model.model.{name}", mapper)
