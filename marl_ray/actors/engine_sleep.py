"""Sleep of a vLLM engine while a learner uses its device."""

from __future__ import annotations

from typing import Any, Literal

from marl_ray.actors.vllm_private import release_kv_cache

MemoryTag = Literal["weights", "kv_cache"]
"""vLLM's names for memory that can be woken separately."""


class EngineSleep:
    """The sleep state of vLLM's `LLMEngine`, which releases memory to a learner.

        awake --(begin)--> asleep --(wake "weights")--> no KV cache --(wake "kv_cache")--> awake

    New weights are loaded between the two wakes. Requests in flight are kept; their KV cache is recomputed from their
    tokens. On a GPU vLLM releases weights and KV cache (level 2), on a CPU only the KV cache. With `keeps_weights` the
    engine goes from awake to "no KV cache" directly. With `offloads_weights` the weights move to host memory (level 1),
    because no update brings them back.
    """

    def __init__(self, engine: Any, on_gpu: bool, keeps_weights: bool = False, offloads_weights: bool = False) -> None:
        self._engine = engine
        self._on_gpu = on_gpu
        self._keeps_weights = keeps_weights
        self._offloads_weights = offloads_weights
        self._asleep: list[MemoryTag] = []
        """Memory that is released."""

    def begin(self) -> None:
        """Fall asleep from any state, including an interrupted update. Does nothing if the engine is asleep."""
        if len(self._asleep) == 2:  # both tags
            return
        self._engine.collective_rpc("abandon_weight_update")
        if self._keeps_weights:
            if not self._asleep:
                release_kv_cache(self._engine, self._on_gpu)
                self._asleep = ["kv_cache"]
            return
        for tag in tuple(self._asleep):  # vLLM puts everything to sleep or nothing
            self.wake(tag)
        # Level 2 discards the weights on a GPU, level 1 moves them to host memory. On a CPU level 1 releases nothing.
        discards_weights = self._on_gpu and not self._offloads_weights
        self._engine.sleep(level=2 if discards_weights else 1, mode="keep")
        if not self._on_gpu:
            self._engine.collective_rpc("free_kv_cache")
        self._asleep = ["weights", "kv_cache"]

    def wake(self, tag: MemoryTag) -> None:
        """Allocate this memory again, without content. Does nothing if it is allocated."""
        if tag not in self._asleep:
            return
        if tag == "kv_cache" and not self._on_gpu:
            self._engine.collective_rpc("restore_kv_cache")
        self._engine.wake_up([tag])
        self._asleep.remove(tag)
