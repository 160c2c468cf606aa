"""LoRA adapters (Hu et al., 2021), by peft: frozen layers with a trainable product B A * alpha / rank beside each."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_ray.config import LoraConfig
from marl_ray.core.errors import UserError

NAME = "default"
"""Name of a model's only adapter, and peft's default."""
ADAPTER_FILE = "adapter_model.safetensors"
"""Weights file in an adapter's folder."""


def peft_installed() -> bool:
    return importlib.util.find_spec("peft") is not None


def require_peft(lora: LoraConfig) -> None:
    """Raise UserError if `lora` asks for adapters and peft is not installed."""
    if lora.rank and not peft_installed():
        raise UserError("lora.rank is set, but peft is not installed: pip install 'marl-ray[lora]', or set it to 0")


def add_adapter(model: Any, lora: LoraConfig, seed: int, name: str = NAME) -> None:
    """Add an adapter to the layers that `lora` names; only adapters are trained from then on.

    A is initialised from `seed` and B is 0, so the model's output does not change. A model may have several adapters;
    all other functions here refer to the active one, which is the last one added or chosen by `model.set_adapter`.
    Raises UserError for layers that do not exist, for experts, and for layers whose weights are the embeddings.
    """
    import torch
    from peft import LoraConfig as Settings

    settings = Settings(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        target_modules=list(lora.targets) or "all-linear",
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings(), _shown_in_float32(model):
        torch.manual_seed(seed)
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several adapters are intended
        try:
            model.add_adapter(settings, adapter_name=name)
        except ValueError as error:
            raise UserError(f"lora.targets does not fit {type(model).__name__}: {str(error)[:300]}") from None
    embeddings = set()
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if layer:
            embeddings.add(id(layer.weight))
    for place, layer in adapted(model).items():
        if not hasattr(layer.base_layer, "weight"):  # stacked experts, whose products peft computes in every pass
            raise UserError(
                f"lora.targets matches {place}, which is no linear layer: name other layers in lora.targets"
            )
        if id(layer.base_layer.weight) in embeddings:
            raise UserError(f"lora.targets names {place}, whose weights are the embeddings: leave it out")


@contextmanager
def _shown_in_float32(model: Any) -> Iterator[None]:
    """Replace parameters of 16 bits by float32 tensors without memory, because peft gives an adapter the dtype of its
    layer."""
    import torch

    replaced: list[tuple[dict[str, Any], str, Any]] = []
    shown: dict[int, Any] = {}
    for module in model.modules():
        for name, own in module._parameters.items():
            if own is not None and own.dtype in (torch.bfloat16, torch.float16):
                values = torch.zeros((), device=own.device).expand(own.shape)
                shown.setdefault(id(own), torch.nn.Parameter(values, own.requires_grad))
                replaced.append((module._parameters, name, own))
    for parameters, name, own in replaced:
        parameters[name] = shown[id(own)]
    try:
        yield
    finally:
        for parameters, name, own in replaced:
            parameters[name] = own.requires_grad_(shown[id(own)].requires_grad)


def trainable(model: Any) -> Iterator[Any]:
    """Return the trainable parameters: all of them, or the adapter's."""
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def adapted(model: Any) -> dict[str, Any]:
    """Return the layers that have an adapter, by name."""
    if not has_adapter(model):
        return {}
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def frozen_matrices(model: Any) -> list[Any]:
    """Return the frozen weights and biases of linear layers, except for a weight that is the input embedding too."""
    import torch

    embedding = model.get_input_embeddings().weight
    matrices = []
    for layer in model.modules():
        if not isinstance(layer, torch.nn.Linear):
            continue
        for tensor in (layer.weight, layer.bias):
            # Without a bias it is None. The output layer's weight may be the embedding itself.
            if tensor is not None and not tensor.requires_grad and tensor is not embedding:
                matrices.append(tensor)
    return matrices


def narrow_frozen_matrices(model: Any, dtype: Any) -> None:
    """Store the frozen matrices in `dtype`, in place. The results of a model that computes in `dtype` do not change,
    because its forward pass converts these matrices. A model may have one adapter only, as peft gives further
    adapters the dtype of the base model."""
    for tensor in frozen_matrices(model):
        tensor.data = tensor.data.to(dtype)


def has_adapter(model: Any) -> bool:
    return getattr(model, "_hf_peft_config_loaded", False)


def named_weights(model: Any, move: Callable[[Any], Any] = lambda tensor: tensor) -> Iterator[tuple[str, Any]]:
    """Yield names and detached tensors of all parameters as in a model without adapters, merged one at a time.

    `move` is applied to every tensor before tensors are merged, for example to merge on a GPU an offloaded model.
    """
    layers = adapted(model)
    adapter = _active(model)
    narrow = tuple(f"{layer}.lora_" for layer in layers)
    for name, parameter in model.named_parameters():
        before, inside, last = name.rpartition(".base_layer.")
        if inside and before in layers:
            value = move(parameter.detach())
            if last == "weight":
                value = value + _adapter_product(layers[before], adapter, move)
            yield f"{before}.{last}", value
        elif not name.startswith(narrow):
            yield name, move(parameter.detach())


def named_adapter(model: Any, move: Callable[[Any], Any] = lambda tensor: tensor) -> Iterator[tuple[str, Any]]:
    """Yield names and detached tensors of the active adapter: `{layer}.lora_A.weight` [rank, in], and
    `{layer}.lora_B.weight` [out, rank]. `move` is applied to every tensor."""
    adapter = _active(model)
    for name, layer in adapted(model).items():
        yield f"{name}.lora_A.weight", move(layer.lora_A[adapter].weight.detach())
        yield f"{name}.lora_B.weight", move(layer.lora_B[adapter].weight.detach())


def adapter_scale(model: Any) -> float:
    """Return the factor of the active adapter's products, alpha / rank."""
    layer = next(iter(adapted(model).values()))
    scale: float = layer.scaling[_active(model)]
    return scale


def _adapter_product(layer: Any, adapter: str, move: Callable[[Any], Any]) -> Any:
    """Return the matrix that an adapter adds to the weight of its layer. peft's `get_delta_weight` computes the same on
    the adapter's own device, which for an offloaded model is the host with one thread."""
    factor_a = move(layer.lora_A[adapter].weight.detach())
    factor_b = move(layer.lora_B[adapter].weight.detach())
    product = factor_b @ factor_a
    if layer.fan_in_fan_out:  # the layer stores its weight transposed
        product = product.T
    return product * layer.scaling[adapter]


@contextmanager
def without_adapter(model: Any) -> Iterator[None]:
    """Disable the model's adapters within the context."""
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def load_adapter(model: Any, folder: Path) -> None:
    """Load an adapter that `model.save_pretrained` wrote. Raises ValueError if layers or rank differ."""
    from peft import set_peft_model_state_dict

    state = _read_adapter(folder)
    expected = model.get_adapter_state_dict(_active(model))
    if _shapes(state) != _shapes(expected):
        raise ValueError("it is the adapter of other layers or of another rank")
    set_peft_model_state_dict(model, state, _active(model))


def _shapes(state: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.shape for name, tensor in state.items()}


def merge_adapter(model: Any) -> None:
    """Merge the adapter into the model's weights and remove it."""
    for name, layer in adapted(model).items():
        above, _, last = name.rpartition(".")
        layer.merge()
        setattr(model.get_submodule(above), last, layer.get_base_layer())
    model._hf_peft_config_loaded = False
    del model.peft_config


def adapter_weights(model: Any, folder: Path) -> dict[str, Any]:
    """Return the tensors of a saved adapter under the names of the model's parameters."""
    weights = {}
    for name, tensor in _read_adapter(folder).items():
        # A file names no adapter: `layer.lora_A.weight` is `layer.lora_A.default.weight` in the model.
        layer, _, last = name.rpartition(".")
        weights[f"{layer}.{_active(model)}.{last}"] = tensor
    return weights


def _read_adapter(folder: Path) -> dict[str, Any]:
    """Return the tensors of a saved adapter under peft's names."""
    from safetensors.torch import load_file

    tensors = load_file(folder / ADAPTER_FILE)
    return {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}


def describe_adapter(model: Any) -> str:
    """Return one line on the trained share of the model."""
    own = sum(parameter.numel() for parameter in trainable(model))
    whole = 0
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            whole += parameter.numel()
    rank = next(iter(adapted(model).values())).r[_active(model)]
    return (
        f"learns adapters of rank {rank} beside {len(adapted(model))} layers: {own / 1e6:.2f} M numbers, and "
        f"{whole / 1e6:.2f} M stay as they are"
    )


def _active(model: Any) -> str:
    """Return the name of the active adapter, or the default name if there is none."""
    return model.active_adapters()[0] if has_adapter(model) else NAME
