"""What an engine's workers do for its sleep, beside what vLLM does. Methods that vLLM adds to its worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from marl_ray.learning.cpu_offload import memory_in_use, release_cached_memory


class WorkerSleepExtension:
    """vLLM's own sleep frees memory of GPUs alone; on a CPU keys and values are freed here."""

    device: torch.device
    model_runner: Any
    freed: list[tuple[torch.UntypedStorage, int]]

    def free_kv_cache(self) -> None:
        """Give back the memory of keys and values, which nothing may read or write from here on."""
        self.freed = []
        for storage in self._kv_storages():
            if size := storage.nbytes():  # several layers have parts of one
                self.freed.append((storage, size))
                storage.resize_(0)
        release_cached_memory(self.device)

    def restore_kv_cache(self) -> None:
        """Have it again, empty."""
        for storage, size in self.freed:
            storage.resize_(size)
            torch.empty(0, dtype=torch.uint8).set_(storage).zero_()  # type: ignore[call-overload]
        self.freed = []

    def memory_in_use(self) -> int:
        """See `marl_ray.learning.cpu_offload`."""
        return memory_in_use(self.device)

    def _kv_storages(self) -> Iterator[torch.UntypedStorage]:
        for cache in self.model_runner.kv_caches:
            for tensor in cache if isinstance(cache, list | tuple) else [cache]:
                yield tensor.untyped_storage()
