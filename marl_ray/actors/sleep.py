"""An engine's sleep, while the device is a learner's: it has no weights then, and no keys and values.

    awake --(begin)--> asleep --(wake "weights")--> no cache yet --(wake "kv_cache")--> awake

Between the two wakes come the weights (`marl_ray.weights.receiver`). Requests in flight are kept, without their keys
and values, which are computed again from their tokens. All calls are made on the engine's thread.
"""

from __future__ import annotations

from typing import Any, Literal

Tag = Literal["weights", "kv_cache"]
TAGS: tuple[Tag, ...] = ("weights", "kv_cache")
"""vLLM's names for what can be awake by itself."""


class Sleep:
    """Of `engine`, vLLM's `LLMEngine`. On a GPU vLLM drops both parts (level 2); on a CPU it only stops, and weights
    stay where they are."""

    def __init__(self, engine: Any, on_gpu: bool) -> None:
        self._engine = engine
        self._on_gpu = on_gpu
        self._asleep: list[Tag] = []

    def begin(self) -> None:
        """From wherever it is, an update that was broken off included. It may be asleep already."""
        if len(self._asleep) == len(TAGS):
            return
        self._engine.collective_rpc("abandon_weight_update")
        for tag in tuple(self._asleep):  # vLLM puts all to sleep, or nothing
            self.wake(tag)
        self._engine.sleep(level=2 if self._on_gpu else 1, mode="keep")
        if not self._on_gpu:
            self._engine.collective_rpc("free_kv_cache")
        self._asleep = list(TAGS)

    def wake(self, tag: Tag) -> None:
        """Its memory is there again, with nothing in it. Nothing happens where it is awake."""
        if tag not in self._asleep:
            return
        if tag == "kv_cache" and not self._on_gpu:
            self._engine.collective_rpc("restore_kv_cache")
        self._engine.wake_up([tag])
        self._asleep.remove(tag)
