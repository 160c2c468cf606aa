"""A learner's state between two batches, which a thread writes while training continues.

    state --take_snapshot--> StateSnapshot --write--> files on disk
                             copy            in any thread

Memory is the price: until a copied snapshot is written, weights and optimizer state are in host memory once more.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor

from marl_ray.core.files import fsync_tree
from marl_ray.learning.learner_files import CRITIC_FILE, STATE_FILE, shard_tensors, write_shards, write_state
from marl_ray.learning.sharding import local_tensor
from marl_ray.learning.torch_private import tree_leaves, with_shard
from marl_ray.models.tokenization import save_tokenizer

if TYPE_CHECKING:
    from marl_ray.learning.learner import Learner

T = TypeVar("T")


def take_snapshot(learner: Learner, folder: str) -> StateSnapshot:
    """Return the complete state of a learner, which refers to the learner's tensors, to be written to `folder`.

    Configs and tokenizer, which are small, are written at once.
    """
    snapshot = StateSnapshot(Path(folder))
    state: dict[str, Any] = {"schedule": learner.schedule.state_dict(), "torch_rng": torch.get_rng_state()}
    if learner.ranks.is_single:
        with held_weights() as snapshot.weights:
            learner.policy.save_pretrained(folder)
        save_tokenizer(learner.tokenizer, folder)
        state["optimizer"] = learner.optimizer.state_dict()
    else:
        snapshot.shards = shard_tensors(learner.policy, learner.optimizer)
        snapshot.group = learner.ranks.writers
    if learner.ranks.rank == 0:
        snapshot.states[STATE_FILE] = state
        if learner.critic is not None:
            snapshot.states[CRITIC_FILE] = learner.critic.state()
    return snapshot


@dataclass(frozen=True, slots=True)
class WeightFile:
    """Weights that transformers would have written to `path` with `write`."""

    write: Callable[..., None]
    tensors: dict[str, torch.Tensor]
    path: Path
    metadata: dict[str, str] | None


@dataclass(slots=True)
class StateSnapshot:
    """The part of a checkpoint that one rank writes to `folder`.

    - weights: files of weights, of a single rank;
    - shards: tensors of this rank's shard, of several ranks, and `group` for their collective calls;
    - states: content of the other files by name, on rank 0.
    """

    folder: Path
    weights: list[WeightFile] = field(default_factory=list)
    shards: dict[str, torch.Tensor] | None = None
    group: dist.ProcessGroup | None = None
    states: dict[str, dict[str, Any]] = field(default_factory=dict)

    def copy(self) -> None:
        """Replace all tensors by copies in host memory, which later training does not change."""
        copies = HostCopies()
        self.weights = [replace(file, tensors=copies.of(file.tensors)) for file in self.weights]
        self.shards = copies.of(self.shards)
        self.states = copies.of(self.states)
        copies.wait()

    def write(self) -> None:
        """Write all files durably; a collective call. Raises OSError."""
        for file in self.weights:
            write_weights(file)
        if self.shards is not None:
            write_shards(self.folder, self.shards, self.group)
        for name, state in self.states.items():
            write_state(state, self.folder / name)
        if self.states:  # rank 0, after all shards are written
            fsync_tree(self.folder)


def write_weights(file: WeightFile) -> None:
    """Write weights, but raise the disk's own error, of which safetensors gives only the text."""
    try:
        file.write(file.tensors, file.path, metadata=file.metadata)
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(file.path)) from None


class HostCopies:
    """Copies of tensors in host memory. Tensors in the same memory, such as tied weights, have one copy, so that the
    files have the size and the content of files of the originals."""

    def __init__(self) -> None:
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}
        self._has_pending = False

    def of(self, value: T) -> T:
        """Return a copy of nested containers. Copies from a GPU are complete only after `wait`."""
        copies = {id(leaf): self._copy(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)}
        return copy.deepcopy(value, copies)  # which takes the objects in `copies` for already copied

    def wait(self) -> None:
        """Wait until all copies are complete."""
        if self._has_pending:
            torch.cuda.synchronize()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        source = local_tensor(tensor).detach()
        address = source.untyped_storage().data_ptr()
        key = (address, source.storage_offset(), source.dtype, source.shape, source.stride())
        if key not in self._copies:
            # From pinned memory the bus runs at full speed. The state of an offloaded learner is on the host already.
            buffer = torch.empty_like(source, device="cpu", pin_memory=source.is_cuda)
            self._copies[key] = buffer.copy_(source, non_blocking=source.is_cuda)
            self._has_pending |= source.is_cuda
        copied = self._copies[key]
        if isinstance(tensor, DTensor):
            return with_shard(tensor, copied)
        return copied


@contextmanager
def held_weights() -> Iterator[list[WeightFile]]:
    """Collect the weights that `save_pretrained` writes within the context; it writes all other files itself.

    The tensors have the names, and the files the parts, that transformers gives them. A thread cannot call
    `save_pretrained`: it reads the dtype of parameters, which `cast_on_forward` replaces during training, and the
    active adapter, which is another learner's at times. safetensors releases the interpreter's lock while it writes.
    """
    from transformers import modeling_utils

    module: Any = modeling_utils
    files: list[WeightFile] = []
    write = module.safe_save_file

    def hold(tensors: dict[str, torch.Tensor], path: str, metadata: dict[str, str] | None = None) -> None:
        files.append(WeightFile(write, dict(tensors), Path(path), metadata))

    module.safe_save_file = hold
    try:
        yield files
    finally:
        module.safe_save_file = write
