"""CPU offload of a learner's state while other actors use its device.

On a GPU, only the CUDA context stays on the device. On a CPU, gradients and the allocator's free memory are released.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from marl_ray.learning.learner import Learner

STEP_COUNT = "step"
"""Entry of an optimizer's state that stays on the CPU on every device."""


class CpuOffload:
    """Keeps a learner's state off its device except within `on_device`.

    peak_bytes: memory in use when the learner last left its device (see `memory_in_use`).
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.peak_bytes = 0
        self._offload()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Move the state to the device for the duration of the context."""
        self._move(self._learner.device)
        try:
            yield
        finally:
            self.peak_bytes = memory_in_use(self._learner.device)
            self._offload()

    def _offload(self) -> None:
        for module in self._learner.modules():
            module.zero_grad(set_to_none=True)
        self._move(torch.device("cpu"))
        release_cached_memory(self._learner.device)

    def _move(self, device: torch.device) -> None:
        for tensor in _state(self._learner):
            tensor.data = tensor.data.to(device)


def _state(learner: Learner) -> Iterator[torch.Tensor]:
    """Yield the tensors that are kept on the device between batches."""
    for module in learner.modules():
        yield from chain(module.parameters(), module.buffers())
    for optimizer in learner.optimizers():
        for state in optimizer.state.values():
            yield from (value for key, value in state.items() if torch.is_tensor(value) and key != STEP_COUNT)


def release_cached_memory(device: torch.device) -> None:
    """Return the free memory of this process's allocator to the system."""
    if device.type == "cuda":
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc
        libc.malloc_trim(0)


def memory_in_use(device: torch.device) -> int:
    """Return bytes in use: on a GPU by all processes, on a CPU the allocated and touched memory of this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024
