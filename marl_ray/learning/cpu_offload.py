"""Where a learner's state is while others have its device: in the host's memory.

On a GPU weights, buffers, critic, reference and the optimizer's moments go there and come back; the allocator's cache
is given back, so that the device has nothing of this process but its context. On a CPU, where the device is the host's
memory, what can be given back are gradients and what the allocator keeps for later.
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

OWN_CLOCK = "step"
"""Of an optimizer's state: a number that it keeps on the CPU, whatever the device."""


class CpuOffload:
    """A learner that is on its device inside of `on_device` alone, from here on.

    peak_bytes: bytes in use when the learner was last about to leave its device, as `memory_in_use` counts them.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.peak_bytes = 0
        self._park()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Its state is there, until the end."""
        self._move(self._learner.device)
        try:
            yield
        finally:
            self.peak_bytes = memory_in_use(self._learner.device)
            self._park()

    def _park(self) -> None:
        for module in self._learner.modules():
            module.zero_grad(set_to_none=True)
        self._move(torch.device("cpu"))
        release_cached_memory(self._learner.device)

    def _move(self, device: torch.device) -> None:
        for tensor in _state(self._learner):
            tensor.data = tensor.data.to(device)


def _state(learner: Learner) -> Iterator[torch.Tensor]:
    """All that is kept on the device from one batch to the next, each once."""
    for module in learner.modules():
        yield from chain(module.parameters(), module.buffers())
    for optimizer in learner.optimizers():
        for state in optimizer.state.values():
            yield from (value for key, value in state.items() if torch.is_tensor(value) and key != OWN_CLOCK)


def release_cached_memory(device: torch.device) -> None:
    """Nothing is kept for later of what this process' allocator has."""
    if device.type == "cuda":
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
    elif hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc
        libc.malloc_trim(0)


def memory_in_use(device: torch.device) -> int:
    """Bytes: of the GPU, whoever uses them; on a CPU those that this process has allocated and touched."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024
