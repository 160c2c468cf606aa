"""Files of a learner: its part of a checkpoint, readable by any number of ranks, and exported models.

| form | written by | weights, or adapter weights | optimizer |
|---|---|---|---|
| whole | a learner of one rank | as transformers, or peft, loads them | `learner.pt` |
| sharded | several ranks, each its shard | `shards/`, by torch.distributed.checkpoint (DCP) | `shards/` |

`learner.pt` also has the state that all ranks share: the schedule and the random number generator.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from marl_ray.config import ModelConfig, ModelKwargs
from marl_ray.core.errors import UserError
from marl_ray.core.files import fsync, fsync_tree
from marl_ray.core.text import excerpt
from marl_ray.learning.policy_model import load_policy
from marl_ray.learning.ranks import is_peer_failure
from marl_ray.learning.sharding import copy_from_rank_zero, full_tensor, local_shard
from marl_ray.models.lora import (
    NAME,
    adapter_weights,
    add_adapter,
    has_adapter,
    load_adapter,
    merge_adapter,
    named_weights,
)
from marl_ray.models.tokenization import fingerprint, load_tokenizer, save_tokenizer
from marl_ray.models.weight_files import SHARDS, TRAINED_FILE, check_folder

if TYPE_CHECKING:
    from marl_ray.learning.learner import Learner

STATE_FILE = "learner.pt"
CRITIC_FILE = "critic.pt"
WEIGHTS = "weights."
"""Prefix of the name of a weight in shards, followed by the parameter's name."""
OPTIMIZER = "optimizer."
"""Prefix of the name of an optimizer's tensor in shards, followed by the names of the parameter and of the tensor."""
UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, UserError)
"""Errors from reading files that are truncated, damaged, or of another model."""


def write_state(state: dict[str, Any], path: Path) -> None:
    """Write with `torch.save`, but raise the disk's own error, which torch.save hides."""
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


@contextmanager
def checkpoint_errors(part: Path, checkpoint: Path) -> Iterator[None]:
    """Convert errors from reading `part` of a checkpoint into a UserError that names both."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (*UNREADABLE, UnpicklingError, CheckpointException) as error:
        if is_peer_failure(error):
            raise
        first_line = str(error).partition("\n")[0]
        reason = first_line[:200] or type(error).__name__
        raise UserError(
            f"{part} is damaged ({reason}): copy it again, or delete {checkpoint} to go on from before it"
        ) from error


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the trainable parameters by name, in the optimizer's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def shard_tensors(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return this rank's trained weights and optimizer state by their names in shards."""
    tensors: dict[str, Any] = {}
    for name, parameter in trained_parameters(model).items():
        tensors[WEIGHTS + name] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{OPTIMIZER}{name}.{key}"] = value
    return tensors


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Write this rank's shard durably; a collective call of `group` (None: the default one). Raises the first error of
    a rank."""
    writer = dcp.FileSystemWriter(folder / SHARDS, sync_files=True)
    try:
        dcp.save(tensors, storage_writer=writer, process_group=group)
    except CheckpointException as error:
        if is_peer_failure(error):
            raise
        for failure, _ in error.failures.values():  # of each rank, with its traceback
            raise failure from None
        raise


@torch.no_grad()
def read_shards(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Read shards with any number of ranks, into a new optimizer; a collective call. Raises ValueError if they are of
    another model."""
    reader = dcp.FileSystemReader(folder / SHARDS)
    sizes = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        sizes[name] = getattr(stored, "size", None)
    parameters = trained_parameters(model)
    tensors: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if sizes.get(WEIGHTS + name) != parameter.shape:
            raise ValueError(f"it has no {name} of the model's shape")
        tensors[WEIGHTS + name] = parameter.detach()

    # A new optimizer has no state, so tensors for it are made here, with the optimizer's numbers of parameters.
    state: dict[int, dict[str, torch.Tensor]] = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        prefix = f"{OPTIMIZER}{name}."
        for stored_name, size in sizes.items():
            key = stored_name.removeprefix(prefix)
            if not stored_name.startswith(prefix) or "." in key:
                continue  # of another parameter, whose name may begin alike
            value = torch.zeros(size or ())
            if size == parameter.shape:
                value = torch.zeros_like(parameter)  # sharded as the parameter
            tensors[stored_name] = value.detach()
            state.setdefault(number, {})[key] = value.detach()
    dcp.load(tensors, storage_reader=reader)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], on_host: bool = False) -> None:
    """Load the optimizer state of a single rank; of tensors in a parameter's shape, take this rank's shard. With
    `on_host` these tensors stay in host memory, which `load_state_dict` would move to the parameter's device."""
    parameters = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    state: dict[int, dict[str, Any]] = {}
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for number, values in saved["state"].items():
        state[number] = {}
        moments[number] = {}
        for key, value in values.items():
            if not torch.is_tensor(value) or value.shape != parameters[number].shape:
                state[number][key] = value
            elif on_host:
                moments[number][key] = local_shard(value, parameters[number]).clone()
            else:
                state[number][key] = local_shard(value, parameters[number]).clone()
    optimizer.load_state_dict({**saved, "state": state})
    for number, tensors in moments.items():
        optimizer.state[parameters[number]] |= tensors


def load_weights(learner: Learner, folder: Path) -> None:
    """Load the weights that a learner of one rank wrote; a collective call."""
    check_folder(folder, own_tokenizer=True)
    policy = learner.policy
    if learner.ranks.is_single:
        if has_adapter(policy):
            load_adapter(policy, folder)
        else:
            policy.load_state_dict(_load_on_cpu(learner, str(folder)).state_dict())
        return
    weights: Mapping[str, torch.Tensor] | None = None
    if learner.ranks.rank == 0:
        if has_adapter(policy):
            weights = adapter_weights(policy, folder)
        else:
            weights = dict(_load_on_cpu(learner, str(folder)).named_parameters())
    copy_from_rank_zero(trained_parameters(policy), weights)


def gather_policy(learner: Learner, merged: bool) -> Any:
    """Return the full policy on rank 0, with the adapter merged into it if `merged`; a collective call."""
    policy = learner.policy
    if learner.ranks.is_single and not (merged and has_adapter(policy)):
        return policy
    model = None
    if learner.ranks.rank == 0:
        model = _load_on_cpu(learner, learner.base)
        if not merged:
            add_adapter(model, learner.lora, 0, learner.name)
    gathered = named_weights(policy) if merged else trained_parameters(policy).items()
    with torch.no_grad():
        for name, tensor in gathered:
            weight = full_tensor(tensor.detach())
            if model is not None:
                model.get_parameter(name).copy_(weight)
    return model


def _load_on_cpu(learner: Learner, path: str) -> Any:
    return load_policy(path, learner.model.model_kwargs.trust_remote_code, torch.device("cpu"))


def write_model(
    folder: str,
    policy: Any,
    dtype: torch.dtype | None,
    tokenizer: Any,
    kwargs: ModelKwargs,
    texts: list[str],
    steps: int,
) -> None:
    """Write a trained policy, its tokenizer and its number of training steps, atomically.

    `dtype` is the dtype of the written weights; None writes only the adapter, unchanged. Raises RuntimeError if the
    saved tokenizer, loaded again, encodes `texts` differently.
    """
    final = Path(folder)
    hidden = final.with_name(f".{final.name}")  # until all files are durable
    weights = None
    if dtype is not None:
        weights = dict(policy.state_dict())
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                weights[name] = tensor.to(dtype)
    policy.save_pretrained(hidden, state_dict=weights)
    save_tokenizer(tokenizer, hidden)
    saved = load_tokenizer(str(hidden), ModelConfig(model_kwargs=kwargs))
    if fingerprint(saved, texts) != fingerprint(tokenizer, texts):
        raise RuntimeError(f"the tokenizer saved in {folder} splits text differently when it is loaded again")
    (hidden / TRAINED_FILE).write_text(json.dumps({"steps": steps}) + "\n", encoding="utf-8")
    fsync_tree(hidden)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(hidden, final)
    fsync(final.parent)


def save_merged_model(base: str, adapter: Path, into: Path, model: ModelConfig) -> None:
    """Merge an adapter into `base` (a local folder or hub id), and write the float32 model with its tokenizer.

    Raises UserError if the adapter does not fit the model.
    """
    from peft import PeftConfig

    policy = load_policy(base, model.model_kwargs.trust_remote_code, torch.device("cpu"))
    try:
        policy.add_adapter(PeftConfig.from_pretrained(str(adapter)), adapter_name=NAME)
        load_adapter(policy, adapter)
    except (ValueError, TypeError, OSError) as error:
        raise UserError(f"adapter {adapter} cannot be merged into {base}: {excerpt(error)}") from None
    merge_adapter(policy)
    policy.save_pretrained(into)
    save_tokenizer(load_tokenizer(base, model), into)
