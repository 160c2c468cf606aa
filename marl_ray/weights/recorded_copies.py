"""The copies that load weights into an engine's parameters, recorded once and repeated in every update.

vLLM loads a weight through Python code of the model and of its layers, which finds the parameter, or the part of a
parameter that several weights share (q, k and v; gate and up), and copies. With vLLM's reload this takes about a
millisecond per weight. The places do not change, so `record` runs the code once with weights that have shapes and no
data, and `RecordedCopies.copy` later makes all copies of a chunk in a few kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from marl_ray.learning.torch_private import TorchDispatchMode, changes_arguments, copy_all, storage_key
from marl_ray.weights.slab import SlabLayout
from marl_ray.weights.vllm_private import PLAIN_ATTENTION, PLAIN_METHODS

WORDS_AT_ONCE = 2**24
"""Words that are summed at a time, which take 128 MiB in 64 bits."""


class CannotRecord(Exception):
    """A model whose weights are more than copied. The message is the reason."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy from a view of weight `name` to `target`, a view of a parameter."""

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    target: torch.Tensor

    def source(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the view of a weight that is copied."""
        return torch.as_strided(weight, self.size, self.stride, weight.storage_offset() + self.offset)


class _Recorder(TorchDispatchMode):
    """Records copies from `weights`, which are on the meta device, and does not make them."""

    def __init__(self, weights: Mapping[str, torch.Tensor], parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._names = {storage_key(weight): name for name, weight in weights.items()}
        self._parameters = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self.copies: list[_Copy] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        loads_weight = func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta
        if not loads_weight:
            if changes_arguments(func) and self._is_part_of_model(args[0]):
                raise CannotRecord("a parameter is computed with after it is loaded")
            return func(*args, **(kwargs or {}))
        target, source = args[:2]
        name = self._names.get(storage_key(source))
        if name is None:
            raise CannotRecord("a weight is computed with before it is copied")
        if target.shape != source.shape or target.dtype != source.dtype:
            raise CannotRecord(f"{name} is converted while it is copied")
        copy = _Copy(name, tuple(source.shape), source.stride(), source.storage_offset(), target.detach())
        self.copies.append(copy)
        return target

    def _is_part_of_model(self, tensor: Any) -> bool:
        if not isinstance(tensor, torch.Tensor) or tensor.is_meta or tensor.numel() == 0:
            return False  # it has no address
        return tensor.untyped_storage().data_ptr() in self._parameters


class RecordedCopies:
    """All copies of an update into `parameters`. `bind` says where the weights are."""

    def __init__(self, copies: Iterable[_Copy], parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._copies: dict[str, list[_Copy]] = {}
        for copy in copies:
            self._copies.setdefault(copy.name, []).append(copy)
        self._bound: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []

    def bind(self, layout: SlabLayout, slab: torch.Tensor) -> None:
        """Take the weights from this slab from now on."""
        self._bound = []
        for chunk in range(len(layout.chunks)):
            targets: list[torch.Tensor] = []
            sources: list[torch.Tensor] = []
            for name, weight in layout.views(slab, chunk).items():
                for copy in self._copies[name]:
                    targets.append(copy.target)
                    sources.append(copy.source(weight))
            self._bound.append((targets, sources))

    def release(self) -> None:
        """Forget the slab."""
        self._bound = []

    @torch.no_grad()
    def copy(self, chunk: int) -> None:
        """Copy a chunk into the parameters."""
        targets, sources = self._bound[chunk]
        copy_all(targets, sources)

    @torch.no_grad()
    def sum_of_parameters(self) -> torch.Tensor:
        """Return the sum of all words of the parameters (see `sum_of_words`)."""
        return torch.stack([sum_of_words(parameter) for parameter in self._parameters]).sum()

    @torch.no_grad()
    def read(self, name: str, weight: torch.Tensor) -> None:
        """Copy a weight from the parameters into `weight`."""
        for copy in self._copies[name]:
            copy.source(weight).copy_(copy.target)


def sum_of_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's 16-bit words, which does not depend on their order."""
    words = tensor.contiguous().view(-1).view(torch.int16)
    # Each part is cast to 64 bits before it is summed, which takes four times its memory.
    parts = [part.sum(dtype=torch.int64) for part in words.split(WORDS_AT_ONCE)]
    return torch.stack(parts).sum()


def record(model: Any, shapes: Mapping[str, torch.Tensor]) -> RecordedCopies:
    """Return the copies with which `model.load_weights` loads weights of these shapes; nothing is loaded.

    Raises CannotRecord if the model does more than to copy each value of each weight to one place.
    """
    for module in model.modules():
        method = type(getattr(module, "quant_method", None)).__name__
        if method not in (*PLAIN_METHODS, "NoneType"):
            raise CannotRecord(f"its layers use {method}")
        is_plain = type(module).__name__ in (*PLAIN_ATTENTION, *PLAIN_METHODS)
        if hasattr(module, "process_weights_after_loading") and not is_plain:
            raise CannotRecord(f"{type(module).__name__} derives other tensors from its weights")
        kernel = getattr(module, "impl", None)
        if getattr(kernel, "sinks", None) is not None:
            raise CannotRecord("its attention has sinks, of which the kernel has a copy")
    # New tensors: the recorder knows weights by their storages.
    weights = {name: torch.empty(shape.shape, dtype=shape.dtype, device="meta") for name, shape in shapes.items()}
    parameters = dict(model.named_parameters())
    recorder = _Recorder(weights, parameters.values())
    try:
        with recorder, torch.no_grad():
            model.load_weights(iter(weights.items()))
    except CannotRecord:
        raise
    except Exception as error:  # the loading code of any model, which needs the values of a weight
        raise CannotRecord(f"loading fails without values: {str(error)[:200]}") from None
    _check_coverage(parameters, weights, recorder.copies)
    return RecordedCopies(recorder.copies, [parameter.detach() for parameter in parameters.values()])


def _check_coverage(
    parameters: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], copies: Iterable[_Copy]
) -> None:
    """Raise CannotRecord unless the copies read and write as many values as there are."""
    copied = dict.fromkeys(weights, 0)
    filled: Counter[int] = Counter()  # number of values that are copied into each storage
    for copy in copies:
        copied[copy.name] += copy.target.numel()
        filled[copy.target.untyped_storage().data_ptr()] += copy.target.numel()
    for name, weight in weights.items():
        if copied[name] != weight.numel():
            raise CannotRecord(f"{copied[name]} of {weight.numel()} values of {name} are copied")
    for name, parameter in parameters.items():
        values = filled[parameter.untyped_storage().data_ptr()]
        if values != parameter.numel():
            raise CannotRecord(f"{values} of {parameter.numel()} values of {name} are loaded")
