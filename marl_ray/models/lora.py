"""LoRA adapters (Hu et al. 2021): the weights of some layers stay as they are, and beside each learns a product of two
narrow matrices, B A * alpha / rank. By peft, which transformers' models know.

A model that has them still is the model it was, so that whoever scores, saves or publishes it has to know nothing
else than `named_weights`: the weights with the products added, under the names that they have without adapters.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_ray.config import LoraConfig
from marl_ray.core.errors import UserError

NAME = "default"
"""Of the adapter of a model that has one; peft's name for one that has none."""
ADAPTER_FILE = "adapter_model.safetensors"
"""In the folder of an adapter, which holds no other weights."""


def peft_installed() -> bool:
    """Whether the package that makes adapters is there."""
    return importlib.util.find_spec("peft") is not None


def require_peft(lora: LoraConfig) -> None:
    """Raises UserError where adapters are asked for and the package that makes them is not installed."""
    if lora.rank and not peft_installed():
        raise UserError("lora.rank is set, but peft is not installed: pip install 'marl-ray[lora]', or set it to 0")


def add_adapter(model: Any, lora: LoraConfig, seed: int, name: str = NAME) -> None:
    """Beside the layers that `lora` names, which alone learn from now on. An adapter's A is drawn from `seed`, its B is
    0: the model computes what it did. Raises UserError for layers that it has not, and for tied ones.

    A model may have several; the last one that was added or chosen by `use_adapter` is the one that all else here
    means by "the adapter"."""
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
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several are meant
        try:
            model.add_adapter(settings, adapter_name=name)
        except ValueError as error:
            raise UserError(f"lora.targets does not fit {type(model).__name__}: {str(error)[:300]}") from None
    ends = {id(layer.weight) for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer}
    for place, layer in adapted(model).items():
        if id(layer.base_layer.weight) in ends:
            raise UserError(f"lora.targets names {place}, whose weights are the embeddings: leave it out")


def use_adapter(model: Any, name: str) -> None:
    """This one computes and learns from now on; the others keep their weights and gradients."""
    model.set_adapter(name)


def trainable(model: Any) -> Iterator[Any]:
    """The parameters that learn: all, or those of the adapter."""
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def adapted(model: Any) -> dict[str, Any]:
    """The layers with an adapter, by name."""
    if not has_adapter(model):
        return {}
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def has_adapter(model: Any) -> bool:
    """Whether the model has one."""
    return getattr(model, "_hf_peft_config_loaded", False)


def named_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Name and tensor of every parameter, detached, as a model without adapters has them; merged one at a time."""
    layers, own = adapted(model), _active(model)
    narrow = tuple(f"{layer}.lora_" for layer in layers)
    for name, parameter in model.named_parameters():
        before, inside, last = name.rpartition(".base_layer.")
        if inside and before in layers:
            value = parameter.detach()
            if last == "weight":
                value = value + layers[before].get_delta_weight(own).detach()
            yield f"{before}.{last}", value
        elif not name.startswith(narrow):
            yield name, parameter.detach()


@contextmanager
def without_adapter(model: Any) -> Iterator[None]:
    """The model computes as it did before it had one."""
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def load_adapter(model: Any, folder: Path) -> None:
    """What `model.save_pretrained` wrote of one. Raises ValueError where it is not this model's."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    prefix = "base_model.model."
    state = {name.removeprefix(prefix): tensor for name, tensor in load_file(folder / ADAPTER_FILE).items()}
    there = model.get_adapter_state_dict(_active(model))
    if {name: tensor.shape for name, tensor in state.items()} != {name: tensor.shape for name, tensor in there.items()}:
        raise ValueError("it is the adapter of other layers or of another rank")
    set_peft_model_state_dict(model, state, _active(model))


def merge_adapter(model: Any) -> None:
    """What its adapter adds goes into its weights, and it has none any more."""
    for name, layer in adapted(model).items():
        above, _, last = name.rpartition(".")
        layer.merge()
        setattr(model.get_submodule(above), last, layer.get_base_layer())
    model._hf_peft_config_loaded = False
    del model.peft_config


def adapter_weights(model: Any, folder: Path) -> dict[str, Any]:
    """The tensors of an adapter that `model.save_pretrained` wrote, under the names of the model's parameters."""
    from safetensors.torch import load_file

    stored = load_file(folder / ADAPTER_FILE)
    own = (name.removeprefix("base_model.model.").rpartition(".") for name in stored)
    names = (f"{layer}.{_active(model)}.{last}" for layer, _, last in own)
    return dict(zip(names, stored.values(), strict=True))


def describe_adapter(model: Any) -> str:
    """How much of the model learns, in words."""
    own = sum(parameter.numel() for parameter in trainable(model))
    whole = sum(parameter.numel() for name, parameter in model.named_parameters() if ".lora_" not in name)
    rank = next(iter(adapted(model).values())).r[_active(model)]
    return (
        f"learns adapters of rank {rank} beside {len(adapted(model))} layers: {own / 1e6:.2f} M numbers, and "
        f"{whole / 1e6:.2f} M stay as they are"
    )


def _active(model: Any) -> str:
    """The name of the adapter; nobody asks for that of none."""
    return model.active_adapters()[0] if has_adapter(model) else NAME
