"""Release of a learner's memory while other actors use its device, as `resources.colocate` says.

Gradients, activations and the allocator's free memory are released in any case. On a GPU, the state is moved to host
memory as a whole (turns), in its optimizer part (stream) or not at all (kv).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from marl_ray.learning.sharding import local_tensor, refresh_shards

if TYPE_CHECKING:
    from marl_ray.learning.learner import Learner


class CpuOffload:
    """Keeps a learner off its device except within `on_device`.

    keeps_state: True if parameters and optimizer state stay on the device. Only working memory is released.
    peak_bytes: memory in use when the learner last left its device (see `memory_in_use`).
    """

    def __init__(self, learner: Learner, keeps_state: bool = False) -> None:
        self._learner = learner
        self._keeps_state = keeps_state
        self._host = HostBuffers(pinned=learner.device.type == "cuda")
        self.peak_bytes = 0
        self._offload()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Let the learner use the device for the duration of the context."""
        self._move(to_host=False)
        try:
            yield
        finally:
            self.peak_bytes = memory_in_use(self._learner.device)
            self._offload()

    def _offload(self) -> None:
        for module in self._learner.modules():
            module.zero_grad(set_to_none=True)
        self._learner.copies.drop()
        self._move(to_host=True)
        release_cached_memory(self._learner.device)

    def _move(self, to_host: bool) -> None:
        """Copy the state to the host or to the device, without waiting for single tensors. On a CPU nothing moves."""
        device = self._learner.device
        if device.type == "cpu" or self._keeps_state:
            return
        for whole in _state(self._learner):
            tensor = local_tensor(whole)
            if to_host:
                # Nothing changes a frozen parameter, so its buffer in host memory stays right.
                is_constant = isinstance(whole, torch.nn.Parameter) and not whole.requires_grad
                self._host.offload(tensor, is_constant)
            else:
                tensor.data = tensor.data.to(device, non_blocking=True)
        for module in self._learner.modules():
            refresh_shards(module)
        torch.cuda.synchronize(device)


class HostBuffers:
    """One buffer in host memory per tensor, allocated once; in pinned memory, copies run at the speed of the bus."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._buffers: MutableMapping[torch.Tensor, torch.Tensor] = WeakIdKeyDictionary()

    def offload(self, tensor: torch.Tensor, is_constant: bool = False) -> None:
        """Start to copy `tensor` into its buffer, and replace its data by the buffer. A constant tensor is copied once
        only."""
        buffer = self._buffers.get(tensor)
        if buffer is not None and is_constant:
            tensor.data = buffer
            return
        if buffer is None:
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=self._pinned, requires_grad=False)
            self._buffers[tensor] = buffer
        if tensor.data_ptr() != buffer.data_ptr():  # tied parameters are offloaded once
            tensor.data = buffer.copy_(tensor.detach(), non_blocking=True)


def _state(learner: Learner) -> Iterator[torch.Tensor]:
    """Yield the tensors that are kept on the device between batches."""
    for module in learner.modules():
        yield from chain(module.parameters(), module.buffers())
    for optimizer in learner.optimizers():
        yield from optimizer_state(optimizer)


def optimizer_state(
    optimizer: torch.optim.Optimizer, groups: Iterable[dict[str, Any]] | None = None
) -> Iterator[torch.Tensor]:
    """Yield the optimizer's tensors on the device, by default of all parameter groups.

    Fused optimizers keep the step count on the parameter's device, where `load_state_dict` puts it too; others keep it
    on the CPU.
    """
    if groups is None:
        groups = optimizer.param_groups
    for group in groups:
        is_step_on_device = group.get("fused")
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if torch.is_tensor(value) and (is_step_on_device or key != "step"):
                    yield value


def release_cached_memory(device: torch.device) -> None:
    """Return the free memory of this process's allocator to the system."""
    if device.type == "cuda":
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # only glibc's
        libc.malloc_trim(0)


def memory_in_use(device: torch.device) -> int:
    """Return bytes in use: on a GPU by all processes, on a CPU the allocated and touched memory of this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status["RssAnon"].split()[0]) * 1024  # in kB; without mapped files
