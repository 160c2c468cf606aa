"""Files of a learner in a checkpoint, readable by any number of ranks.

| form | written by | weights, or adapter weights | optimizer |
|---|---|---|---|
| whole | a learner of one rank | as transformers, or peft, loads them | `learner.pt` |
| sharded | several ranks, each its shard | `shards/`, by torch.distributed.checkpoint (DCP) | `shards/` |

`learner.pt` also has the state that all ranks share: the schedule and the random number generator. Each rank reads the
shards it needs; a single rank reads everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from marl_ray.core.errors import UserError
from marl_ray.learning.ranks import is_peer_failure
from marl_ray.learning.sharding import local_shard
from marl_ray.models.weight_files import SHARDS

STATE_FILE, CRITIC_FILE = "learner.pt", "critic.pt"
WEIGHTS, OPTIMIZER = "weights.", "optimizer."
"""Prefixes of names in shards, followed by the parameter's name and, for the optimizer, the name of its tensor."""
UNREADABLE = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    UnpicklingError,
    UserError,
    CheckpointException,
)
"""Errors from reading files that are truncated, damaged, or of another model."""


def is_sharded(folder: Path) -> bool:
    """Return True if several ranks wrote the folder."""
    return (folder / SHARDS).is_dir()


def write_state(state: Mapping[str, Any], path: Path) -> None:
    """Write with `torch.save`, but raise the disk's own error; given a path, torch.save reports unexpected positions
    instead."""
    try:
        with path.open("wb") as file:
            torch.save(dict(state), file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def read_state(path: Path, mapped: bool = False) -> dict[str, Any]:
    """Read a file of `write_state`. With `mapped`, tensors are read from disk when they are used."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)


@contextmanager
def checkpoint_errors(part: Path, checkpoint: Path) -> Iterator[None]:
    """Convert errors of reading a part of a checkpoint into a UserError that names both."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except UNREADABLE as error:
        if is_peer_failure(error):
            raise
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(
            f"{part} is damaged ({reason[:200]}): copy it again, or delete {checkpoint} to go on from before it"
        ) from error


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the trainable parameters by name, in the optimizer's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Write each rank's shard durably; a collective call."""
    tensors: dict[str, Any] = {}
    for name, parameter in trained_parameters(model).items():
        tensors[WEIGHTS + name] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{OPTIMIZER}{name}.{key}"] = value
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder / SHARDS, sync_files=True))


@torch.no_grad()
def read_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Read the shards of `write_shards` with any number of ranks, into a new optimizer; a collective call.

    Raises ValueError if they are of another model.
    """
    reader = dcp.FileSystemReader(folder / SHARDS)
    sizes = {name: getattr(stored, "size", None) for name, stored in reader.read_metadata().state_dict_metadata.items()}
    parameters = trained_parameters(model)
    mismatched = next((name for name, p in parameters.items() if sizes.get(WEIGHTS + name) != p.shape), None)
    if mismatched is not None:
        raise ValueError(f"it has no {mismatched} of the model's shape")
    tensors: dict[str, Any] = {WEIGHTS + name: parameter.detach() for name, parameter in parameters.items()}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        prefix = f"{OPTIMIZER}{name}."
        for stored, size in sizes.items():
            if stored.startswith(prefix) and "." not in stored.removeprefix(prefix):
                value = torch.zeros_like(parameter) if size == parameter.shape else torch.zeros(size or ())
                tensors[stored] = state.setdefault(number, {})[stored.removeprefix(prefix)] = value.detach()
    dcp.load(tensors, storage_reader=reader)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the optimizer state of a single rank; of tensors in a parameter's shape, take this rank's shard."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {
            key: local_shard(value, parameters[number]).clone()
            if isinstance(value, torch.Tensor) and value.shape == parameters[number].shape
            else value
            for key, value in values.items()
        }
        for number, values in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})
