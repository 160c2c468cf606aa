"""Sharding of one model over several ranks with FSDP2 (`torch.distributed.fsdp.fully_shard`; Zhao et al., 2023).

Each rank keeps a shard of every weight, of its gradient and of the optimizer state. A layer's weights are gathered
before the layer computes, and freed afterwards. Gradients are summed over ranks, because each token is counted by one
rank only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from marl_ray.learning.arguments import FLOAT_BYTES, MAX_UNREDUCED_BYTES
from marl_ray.learning.precision import decoder_layers
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.learning.torch_private import discard_unsharded_gradient, fsdp_parameters, shard_of
from marl_ray.models.lora import named_weights, trainable

T = TypeVar("T")
StoredTensor = tuple[list[str], torch.dtype]
"""All names of a parameter or buffer, of which a tied one has several, and its dtype."""
NamedTensors = Callable[[Any, Callable[[torch.Tensor], torch.Tensor]], Iterator[tuple[str, torch.Tensor]]]
"""Yields names and tensors of a model, each tensor moved by a function."""


class GatherCommand(IntEnum):
    """A command from rank 0 to the ranks that follow."""

    END = 0
    RESTART = 1
    NEXT = 2
    ACCOMPANY = 3


def shard(model: Any, ranks: RankGroup, device: torch.device, compute_dtype: torch.dtype, offload: bool) -> None:
    """Shard a model of `load_policy` in place, layer by layer; only rank 0 ever holds more than one full layer.

    Layers are gathered and computed in `compute_dtype`, from float32 shards; gradients are summed in float32. With
    `offload` the shards are in host memory, where the optimizer runs.
    """
    precision = MixedPrecisionPolicy()
    if compute_dtype != torch.float32:
        precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    offload = offload and device.type == "cuda"
    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (ranks.size,)),
        "mp_policy": precision,
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        # By default the root's weights stay gathered after a forward pass until the backward pass. After a pass
        # without gradients that would leave the root's weights gathered, and not the trained ones.
        "reshard_after_forward": True,
    }
    remaining = ranks.broadcast(_tensors_of(model))
    modules: dict[str, Any] = {f"{name}.": layer for name, layer in decoder_layers(model).items()}
    modules[""] = model  # last, with the tensors outside of layers
    for prefix, module in modules.items():
        own, remaining = _split(remaining, prefix)
        for names, dtype in own:
            _fill(model, names, dtype)
        fully_shard(module, **options)
        module.set_force_sum_reduction_for_comms(True)  # gloo supports sums only
        module.set_gradient_divide_factor(1.0)


def _split(tensors: Sequence[StoredTensor], prefix: str) -> tuple[list[StoredTensor], list[StoredTensor]]:
    """Return the tensors whose first name begins with `prefix`, and the others."""
    own: list[StoredTensor] = []
    others: list[StoredTensor] = []
    for names, dtype in tensors:
        part = own if names[0].startswith(prefix) else others
        part.append((names, dtype))
    return own, others


def reduces_once(model: Any, device: torch.device) -> bool:
    """Return True if gradients are reduced over ranks once per mini-batch rather than in every micro-batch."""
    if not isinstance(model, FSDPModule) or device.type != "cuda":
        return False
    trained = sum(parameter.numel() for parameter in trainable(model))
    return FLOAT_BYTES * trained <= MAX_UNREDUCED_BYTES


def discard_unreduced_gradients(model: Any) -> None:
    """Drop gradients that an interrupted mini-batch has not reduced over ranks."""
    for parameter in _sharded_parameters(model):
        discard_unsharded_gradient(parameter)


def _sharded_parameters(model: torch.nn.Module) -> Iterator[Any]:
    """Yield FSDP's state of all parameters."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield from fsdp_parameters(module)


def _tensors_of(model: torch.nn.Module) -> list[StoredTensor]:
    """Return all names of each parameter and buffer, and its dtype."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    found: dict[int, StoredTensor] = {}
    for name, tensor in named:
        names, _ = found.setdefault(id(tensor), ([], tensor.dtype))
        names.append(name)
    return list(found.values())


def _fill(model: torch.nn.Module, names: Sequence[str], dtype: torch.dtype) -> None:
    """Broadcast rank 0's values of a parameter or buffer in their dtype, and set them under all of its names.

    Parameters of 16 bits become float32.
    """
    place, _, attribute = names[0].rpartition(".")
    tensor = getattr(model.get_submodule(place), attribute)
    filled = tensor.detach()
    if tensor.is_meta:  # on all ranks but the first
        filled = torch.empty(tensor.shape, dtype=dtype)
    dist.broadcast(filled, 0)
    if isinstance(tensor, torch.nn.Parameter):
        if dtype in (torch.bfloat16, torch.float16):
            filled = filled.float()
        filled = torch.nn.Parameter(filled, tensor.requires_grad)
    for name in names:
        place, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(place), attribute, filled)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a sharded tensor, as a collective call; return other tensors unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a sharded tensor, the object itself; return other tensors unchanged."""
    return shard_of(tensor) if isinstance(tensor, DTensor) else tensor


def refresh_shards(model: Any) -> None:
    """Let FSDP use shards whose data was replaced, as its `_apply` does."""
    for parameter in _sharded_parameters(model):
        parameter.reset_sharded_param()


def local_shard(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a full tensor, sharded as `like`; all of it if `like` is not sharded."""
    if not isinstance(like, DTensor):
        return full
    # Without a source rank nothing is sent: all ranks have the full tensor.
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def copy_from_rank_zero(parameters: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor] | None) -> None:
    """Copy rank 0's `weights` into the parameters, which may be sharded, one after another.

    Raises ValueError on all ranks if names or shapes differ.
    """
    mismatched: list[str | None] = [None]
    if weights is not None:
        mismatched = [_first_mismatch(parameters, weights)]
    dist.broadcast_object_list(mismatched, 0)
    if mismatched[0] is not None:
        raise ValueError(f"it has no {mismatched[0]} of the model's shape")
    for name, parameter in parameters.items():
        full = torch.empty(parameter.shape) if weights is None else weights[name].float().contiguous()
        dist.broadcast(full, 0)
        parameter.copy_(local_shard(full, parameter))


def _first_mismatch(parameters: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> str | None:
    for name, parameter in parameters.items():
        if name not in weights or weights[name].shape != parameter.shape:
            return name
    return None


def _move(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return a tensor on `device`, by default unchanged. An offloaded shard is in host memory, while the device of its
    DTensor stays the same."""
    if device is None:
        return tensor
    if not isinstance(tensor, DTensor):
        return tensor.to(device)
    return DTensor.from_local(
        shard_of(tensor).to(device),
        tensor.device_mesh,
        tensor.placements,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


class WeightGatherer:
    """The weights of a sharded model as they are sent to generators, gathered one at a time.

    Shards are moved to `device` and cast to `dtype` before they are gathered, by default neither. Gathering is a
    collective call, and only rank 0 knows when it needs a weight. Rank 0 iterates within `run_on_rank_zero`, as often
    and as far as needed, while the other ranks follow its commands. Within `on_all_ranks`, every rank iterates itself.

    named: yields the names and tensors of a model; by default all weights, with the adapter merged.
    accompany: function that the other ranks call while rank 0 is in `lead`.
    """

    def __init__(
        self,
        model: Any,
        ranks: RankGroup = SINGLE_RANK,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        named: NamedTensors = named_weights,
    ) -> None:
        self.ranks = ranks
        self._model = model
        self._dtype = dtype
        self._device = device
        self._named = named
        self._together = ranks.is_single
        """Whether all ranks iterate without commands."""
        self.accompany: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._together:
            for name, weight in self._weights():
                yield name, full_tensor(weight)
            return
        self._broadcast_command(GatherCommand.RESTART)
        weights = self._weights()
        while True:
            self._broadcast_command(GatherCommand.NEXT)
            item = next(weights, None)
            if item is None:
                return
            yield item[0], full_tensor(item[1])

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self._named(self._model, partial(_move, device=self._device)):
            yield name, weight.to(self._dtype or weight.dtype)

    def shapes(self) -> dict[str, torch.Tensor]:
        """Return the weights of the whole model as tensors without memory; nothing is moved, merged or gathered."""

        def shape_of(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

        weights = self._named(self._model, shape_of)
        return {name: weight.to(self._dtype or weight.dtype) for name, weight in weights}

    def run_on_rank_zero(self, work: Callable[[], T]) -> T | None:
        """Run `work` on rank 0 and return its result (None on other ranks); a collective call."""
        if self.ranks.rank:
            self._follow()
            return None
        try:
            return work()
        finally:
            if not self.ranks.is_single:
                self._broadcast_command(GatherCommand.END)

    @contextmanager
    def on_all_ranks(self) -> Iterator[None]:
        """Let every rank iterate without commands, all of them equally far."""
        before = self._together
        self._together = True
        try:
            yield
        finally:
            self._together = before

    @contextmanager
    def lead(self) -> Iterator[None]:
        """Let the other ranks run `accompany`, during which all ranks iterate themselves, and wait until all have
        finished it. For rank 0, within `run_on_rank_zero`."""
        if not self.ranks.is_single:
            self._broadcast_command(GatherCommand.ACCOMPANY)
        with self.on_all_ranks():
            yield
        self.wait_for_ranks()

    def _follow(self) -> None:
        weights: Iterator[tuple[str, torch.Tensor]] = iter(())
        while True:
            command = self._broadcast_command(GatherCommand.NEXT)  # which rank 0 replaces by its own
            if command == GatherCommand.END:
                return
            if command == GatherCommand.RESTART:
                weights = self._weights()
            elif command == GatherCommand.ACCOMPANY:
                assert self.accompany is not None, "set on all ranks"
                with self.on_all_ranks():
                    self.accompany()
                self.wait_for_ranks()
            else:
                item = next(weights, None)
                if item is not None:
                    full_tensor(item[1])

    def wait_for_ranks(self) -> None:
        """Return when all ranks have called this."""
        if not self.ranks.is_single:
            dist.all_reduce(torch.zeros(1))  # in host memory, unlike a barrier

    def _broadcast_command(self, command: GatherCommand) -> GatherCommand:
        message = torch.tensor([command])
        dist.broadcast(message, 0)
        return GatherCommand(int(message))
