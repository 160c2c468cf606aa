"""The files of a learner in a checkpoint, in one of two forms; either is read by any number of ranks.

| | written by | weights, or those of adapters | optimizer |
|---|---|---|---|
| whole | a learner of one rank | as transformers, or peft, loads them | `learner.pt` |
| shards | one of several: each rank its part | `shards/`, by torch.distributed.checkpoint (DCP) | the same |

`learner.pt` has what all ranks have alike, the schedule's place and the random generator's. Those who read take what
they need: a rank its part of each tensor, a single one all of it.
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
from marl_ray.learning.sharding import part_of
from marl_ray.models.weight_files import SHARDS

STATE_FILE, CRITIC_FILE = "learner.pt", "critic.pt"
WEIGHTS, OPTIMIZER = "weights.", "optimizer."
"""What the names in shards begin with; then a parameter's name, and of the optimizer's numbers theirs."""
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
"""What reading files raises that are cut off, damaged, or of another model."""


def is_sharded(folder: Path) -> bool:
    """Whether several ranks have written it."""
    return (folder / SHARDS).is_dir()


def write(state: Mapping[str, Any], path: Path) -> None:
    """`torch.save`, which says what the disk said: given a path, it says that positions are unexpected."""
    try:
        with path.open("wb") as file:
            torch.save(dict(state), file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def read(path: Path, mapped: bool = False) -> dict[str, Any]:
    """What `write` wrote; where its tensors are `mapped`, what nobody takes of them is not read."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)


@contextmanager
def reading(part: Path, checkpoint: Path) -> Iterator[None]:
    """What fails in reading a part of a checkpoint is the part's fault: raises UserError, which names both."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except UNREADABLE as error:
        if is_peer_failure(error):
            raise
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(
            f"{part} is damaged ({why[:200]}): copy it again, or delete {checkpoint} to go on from before it"
        ) from error


def learned(model: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that learn, by name, in the order in which the optimizer counts them."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """The part of each rank, all of which call; when it returns, it is on disk."""
    tensors: dict[str, Any] = {}
    for name, parameter in learned(model).items():
        tensors[WEIGHTS + name] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{OPTIMIZER}{name}.{key}"] = value
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder / SHARDS, sync_files=True))


@torch.no_grad()
def read_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """What `write_shards` wrote, with any number of ranks, all of which call; `optimizer` is new. Raises ValueError
    where it is of another model."""
    reader = dcp.FileSystemReader(folder / SHARDS)
    sizes = {name: getattr(stored, "size", None) for name, stored in reader.read_metadata().state_dict_metadata.items()}
    parameters = learned(model)
    wrong = next((name for name, p in parameters.items() if sizes.get(WEIGHTS + name) != p.shape), None)
    if wrong is not None:
        raise ValueError(f"it has no {wrong} of the model's shape")
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
    """The state of an optimizer that one rank had; of what is as large as its parameter, this rank's part."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {
            key: part_of(value, parameters[number]).clone()
            if isinstance(value, torch.Tensor) and value.shape == parameters[number].shape
            else value
            for key, value in values.items()
        }
        for number, values in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": state})
