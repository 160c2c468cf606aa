"""The dtype in which a model computes from float32 weights: the same one with one rank and with several.

With several ranks, FSDP casts the shards of a decoder layer before it gathers them (its mixed-precision policy). With
one rank, `cast_on_forward` casts the weights of a decoder layer when the layer computes, or takes `NarrowCopies` of
them, which are cast once per optimizer step. In all cases the residual stream has the compute dtype, and gradients are
summed over micro-batches in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from marl_ray.learning.torch_private import copy_all, parameters_of, tree_map_only


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return `dtype` on a GPU, and bfloat16 on a CPU with matrix units for it, without which it is slower than float32;
    otherwise float32."""
    if device.type == "cuda":
        return dtype
    if dtype == torch.bfloat16 and torch.cpu.get_capabilities().get("amx_bf16", False):
        return dtype
    return torch.float32


def decoder_layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the decoder layers of a transformers model by name."""
    kinds = set(model._no_split_modules or ())  # type: ignore[arg-type]
    return {name: module for name, module in model.named_modules() if type(module).__name__ in kinds}


@contextmanager
def first_layer_of_each_kind(model: torch.nn.Module) -> Iterator[None]:
    """Let a model compute with its first decoder layers only, at least two, within the context. The remaining layers
    differ from these in nothing but their weights."""
    layers = list(decoder_layers(model))
    place = layers[0].rpartition(".")[0] if layers else ""  # for example model.layers
    stack = model.get_submodule(place)
    if not isinstance(stack, torch.nn.ModuleList) or not all(name.startswith(f"{place}.") for name in layers):
        yield  # the model has another structure
        return
    kinds = [_kind(layer) for layer in stack]
    last_new_kind = max(kinds.index(kind) for kind in kinds)  # `index` finds the first layer of a kind
    depth = max(2, 1 + last_new_kind)
    above, _, name = place.rpartition(".")
    owner = model.get_submodule(above)
    setattr(owner, name, stack[:depth])
    try:
        yield
    finally:
        setattr(owner, name, stack)


def _kind(layer: torch.nn.Module) -> list[Any]:
    """Return the classes of a layer's modules with their settings, without the number of the layer."""
    kind = []
    for module in layer.modules():
        settings = {}
        for key, value in vars(module).items():
            if key != "layer_idx" and isinstance(value, bool | int | float | str | None):
                settings[key] = value
        kind.append((type(module), settings))
    return kind


class NarrowCopies:
    """Copies of parameters in a narrower dtype, made when the first is needed, until `drop`.

    Without them, each micro-batch casts every weight anew, which is a kernel per weight and costs more host time than
    the multiplication of a small model. The copies take no more memory than the casts, which the backward pass keeps,
    unless layers are checkpointed.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter] = (), dtype: torch.dtype = torch.float32) -> None:
        self._parameters = [p for p in parameters if p.is_floating_point() and p.dtype != dtype]
        self._dtype = dtype
        self._copies: dict[int, torch.Tensor] = {}

    def drop(self) -> None:
        """Free the copies, because the parameters have changed or leave their device."""
        self._copies = {}

    def cast(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the copy of a parameter, through which gradients reach the parameter."""
        if not self._copies and self._parameters:
            self._make_copies()
        copy = self._copies.get(id(parameter))
        if copy is None:  # of an adapter that was added later
            return parameter.to(self._dtype)
        return _UseCopy.apply(parameter, copy)

    def _make_copies(self) -> None:
        for parameter in self._parameters:
            self._copies[id(parameter)] = torch.empty_like(parameter, dtype=self._dtype, requires_grad=False)
        sources = [parameter.detach() for parameter in self._parameters]
        copy_all([self._copies[id(parameter)] for parameter in self._parameters], sources)


class _UseCopy(torch.autograd.Function):
    """The cast of a parameter whose result is known."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
        ctx.dtype = parameter.dtype
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0].to(ctx.dtype), None


def cast_on_forward(model: Any, dtype: torch.dtype, copies: NarrowCopies | None = None) -> None:
    """Let the model compute with copies of its parameters in `dtype`: the `copies`, or casts that are made for one
    decoder layer at a time.

    The parameters themselves keep dtype and names, and receive the gradient of their copies. Nothing changes if all of
    them have this dtype.
    """
    if all(parameter.dtype == dtype for parameter in model.parameters() if parameter.is_floating_point()):
        return
    layers = list(decoder_layers(model).values())
    for module in (*layers, model.base_model, model):
        if "forward" not in vars(module):
            module.forward = _with_cast(module, module.forward, dtype, set(layers) - {module}, copies)


@contextmanager
def computing_in(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """Apply `cast_on_forward` within the context."""
    cast_on_forward(model, dtype)
    try:
        yield
    finally:
        for module in (*decoder_layers(model).values(), model.base_model, model):
            vars(module).pop("forward", None)


def _with_cast(
    module: torch.nn.Module,
    forward: Callable[..., Any],
    dtype: torch.dtype,
    excluded: set[torch.nn.Module],
    copies: NarrowCopies | None,
) -> Callable[..., Any]:
    @functools.wraps(forward)
    def cast_forward(*args: Any, **kwargs: Any) -> Any:
        cast: dict[int, torch.Tensor] = {}  # a tied parameter has one copy
        replaced: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        try:
            for parameters, name, parameter in _parameters(module, excluded):
                if not parameter.is_floating_point() or parameter.dtype == dtype:
                    continue
                replaced.append((parameters, name, parameter))
                key = id(parameter)
                if key not in cast:
                    cast[key] = parameter.to(dtype) if copies is None else copies.cast(parameter)
                parameters[name] = cast[key]
            args, kwargs = tree_map_only(torch.Tensor, _cast_inputs(dtype), (args, kwargs))
            return forward(*args, **kwargs)
        finally:
            for parameters, name, parameter in replaced:
                parameters[name] = parameter

    return cast_forward


def _cast_inputs(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that FSDP applies to a layer's inputs."""
    return lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor


def _parameters(
    module: torch.nn.Module, excluded: set[torch.nn.Module]
) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """Return the parameters of a module outside of `excluded` modules, with the dictionaries that hold them."""
    found: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    parameters: dict[str, Any] = parameters_of(module)
    for name, parameter in parameters.items():
        if parameter is not None:
            found.append((parameters, name, parameter))
    for child in module.children():
        if child not in excluded:
            found += _parameters(child, excluded)
    return found
