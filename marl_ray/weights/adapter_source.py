"""The sending side of weight updates with adapters only, for engines that have the base model (`lora.in_engine`).

The tensors of an update are named `{layer}.lora_A.weight` and `{layer}.lora_B.weight`, where `{layer}.weight` is the
name of the layer's weight in the model's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from transformers.core_model_loading import revert_weight_conversion

from marl_ray.config import LoraConfig
from marl_ray.core.errors import UserError
from marl_ray.learning.policy_model import empty_model
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.models.lora import adapted, adapter_scale, add_adapter


class AdapterSource:
    """The active adapter of a model in the wire dtype and in host memory, in a fixed order.

    `factors` yields the tensors of `marl_ray.models.lora.named_adapter`.
    """

    device = None
    """The tensors are in host memory, whose work is always finished."""

    def __init__(self, model: Any, dtype: torch.dtype, factors: WeightGatherer) -> None:
        self.dtype = dtype
        self.adapter_scale = adapter_scale(model)
        self._factors = factors
        self._file_names = _layers_in_files(model)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._factors:
            layer, _, factor = name.rpartition(".lora_")
            yield f"{self._file_names[layer]}.lora_{factor}", tensor.to(self.dtype).cpu().contiguous()


@cache
def adapter_layers(model: str, trust_remote_code: bool, lora: LoraConfig) -> tuple[str, ...]:
    """Return the layers with an adapter, under their names in the model's files. The weights are not loaded. Raises
    UserError for layers that do not exist."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    empty = empty_model(config, trust_remote_code)
    with torch.device("meta"):
        add_adapter(empty, lora, 0)
    return tuple(_layers_in_files(empty).values())


def _layers_in_files(model: Any) -> dict[str, str]:
    """Return the name of each adapted layer in the model's files. Raises UserError if a layer is not one there."""
    names = {}
    for name, layer in adapted(model).items():
        shape = layer.base_layer.weight.shape
        weight = {f"{name}.weight": torch.empty(shape, device="meta")}
        in_files = revert_weight_conversion(model, weight)
        file_name, stored = next(iter(in_files.items()))
        is_own_layer = len(in_files) == 1 and stored.shape == shape and file_name.endswith(".weight")
        if not is_own_layer:
            raise UserError(
                f"lora.in_engine: layer {name} is no layer of its own in the files of {type(model).__name__}: set it "
                "to false"
            )
        names[name] = file_name.removesuffix(".weight")
    return names
