"""All uses of PyTorch's private API: names that begin with an underscore, and attributes that its documentation omits.

Read in TORCH_VERSION, the only version that setup.py allows. A test compares the version with the installed PyTorch,
and checks each function. Review these functions before changing the version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

TORCH_VERSION = "2.13"
DEVICE_ARGUMENT = 6
"""Position of the number of the GPU among the arguments of `rebuild_cuda_tensor`."""

__all__ = ["FakeTensorMode", "TorchDispatchMode", "tree_leaves", "tree_map_only"]


# Many tensors in a few kernels.


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target."""
    torch._foreach_copy_(targets, sources)


def divide_all(tensors: list[torch.Tensor], divisor: float) -> None:
    """Divide all tensors in place."""
    torch._foreach_div_(tensors, divisor)


# Tensors and operators.


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that tensors with one storage share, also on the meta device, whose addresses are all 0."""
    return tensor.untyped_storage()._cdata


def change_count(tensor: torch.Tensor) -> int:
    """Return the number of in-place changes of a tensor, which autograd counts."""
    return tensor._version


def packet_of(operator: Any) -> Any:
    """Return the operator with all of its overloads, the key of `torch.utils.flop_counter.flop_registry`."""
    return operator._overloadpacket


def changes_arguments(operator: Any) -> bool:
    """Return whether an operator changes one of its arguments in place."""
    return bool(operator._schema.is_mutable)


def export_to_processes(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the CUDA IPC handle of a tensor, which other processes pass to `open_exported`."""
    _, handle = reduce_tensor(tensor)
    return handle


def open_exported(handle: tuple[Any, ...], device_number: int) -> torch.Tensor:
    """Return the tensor of another process on the same GPU, which has `device_number` in this process."""
    arguments = list(handle)
    arguments[DEVICE_ARGUMENT] = device_number  # the other process may see the GPU under another number
    return rebuild_cuda_tensor(*arguments)


# Modules and schedules.


def parameters_of(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """Return the dictionary that holds the module's own parameters. Its values may be replaced by plain tensors, which
    `setattr` refuses."""
    return module._parameters


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the dictionary that holds the module's own buffers."""
    return module._buffers


def set_last_rates(schedule: torch.optim.lr_scheduler.LRScheduler, rates: Sequence[float]) -> None:
    """Set the learning rates that `schedule.get_last_lr` returns."""
    schedule._last_lr = list(rates)


# Sharded models (FSDP2) and tensors (DTensor).


def fsdp_parameters(module: Any) -> Iterator[Any]:
    """Yield FSDP's state of each parameter that an `FSDPModule` shards itself."""
    for group in module._get_fsdp_state()._fsdp_param_groups:
        yield from group.fsdp_params


def discard_unsharded_gradient(parameter: Any) -> None:
    """Drop the gradient of one of `fsdp_parameters` that no rank has reduced."""
    parameter.unsharded_accumulated_grad = None
    if hasattr(parameter, "_unsharded_param"):  # since the first forward pass
        parameter.unsharded_param.grad = None


def shard_of(tensor: Any) -> torch.Tensor:
    """Return this rank's shard of a DTensor, the object itself. `to_local` returns another object."""
    return tensor._local_tensor


def with_shard(tensor: Any, shard: torch.Tensor) -> Any:
    """Return a DTensor like `tensor` with another shard. `from_local` would move it to the device of the mesh."""
    return type(tensor)(shard, tensor._spec, requires_grad=False)
