"""A model that several ranks share out: each keeps a part of every weight, of its gradient and of the optimizer's
numbers for it (FSDP2, `torch.distributed.fsdp.fully_shard`; Zhao et al., 2023, "PyTorch FSDP").

Before a layer computes, forwards or backwards, its weights are gathered, and let go after it; its gradients are summed
over ranks as they are made, and each keeps its part of the sum. So a rank holds its part and a layer. Sums, not means:
a loss counts every token once, whichever rank computes it (`marl_ray.learning.gradient_accumulator`).

Gathering is done together. What rank 0 alone knows when to do, as sending the weights in so many passes, the others
follow (`WeightGatherer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from marl_ray.learning.policy_model import blank_policy, load_policy
from marl_ray.learning.ranks import SINGLE_RANK, RankGroup
from marl_ray.models.lora import named_weights

T = TypeVar("T")

END, AGAIN, NEXT = 0, 1, 2
"""What rank 0 says to those that follow it."""


def load_to_shard(name: str, trust_remote_code: bool, ranks: RankGroup) -> Any:
    """The model in rank 0's memory; in the others' one like it that has no weights yet."""
    if ranks.rank == 0:
        return load_policy(name, trust_remote_code, torch.device("cpu"))
    return blank_policy(name, trust_remote_code)


def shard(model: Any, ranks: RankGroup, device: torch.device, compute_dtype: torch.dtype, offload: bool) -> None:
    """Share a model of `load_to_shard` out, in place, layer by layer: nobody but rank 0 ever holds more than a layer
    that is not its part.

    On a GPU it is gathered and computed in `compute_dtype`, from parts in float32, where gradients are summed too; with
    `offload` the parts are in the host's memory, and the optimizer works there.
    """
    gpu = device.type == "cuda"
    mesh = init_device_mesh(device.type, (ranks.size,))
    precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": precision if gpu and compute_dtype != torch.float32 else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy() if gpu and offload else OffloadPolicy(),
        # The root's too, which by default stays gathered after a forward pass until the backward one; there is none
        # where tokens are only scored, and then its weights would not be the ones that are learned.
        "reshard_after_forward": True,
    }
    left = ranks.broadcast(_tensors_of(model))
    for prefix, module in (*layers_of(model), ("", model)):
        for names in [names for names in left if names[0].startswith(prefix)]:
            _fill(model, names)
            left.remove(names)
        fully_shard(module, **options)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        module.set_gradient_divide_factor(1.0)


def layers_of(model: Any) -> list[tuple[str, Any]]:
    """The decoder's layers, which transformers says are not to be split over devices, with what the names of their
    tensors begin with."""
    kinds = set(model._no_split_modules or ())
    return [(f"{name}.", module) for name, module in model.named_modules() if type(module).__name__ in kinds]


def _tensors_of(model: torch.nn.Module) -> list[list[str]]:
    """All names of each parameter and buffer; tied ones have several."""
    names: dict[int, list[str]] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    return list(names.values())


def _fill(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Give rank 0's values to a parameter or buffer, which has none on the others, under all of its names."""
    places = [(model.get_submodule(place), last) for place, _, last in (name.rpartition(".") for name in names)]
    tensor = getattr(*places[0])
    filled = torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor.detach()
    dist.broadcast(filled, 0)
    if tensor.is_meta:
        new = torch.nn.Parameter(filled, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else filled
        for module, last in places:
            setattr(module, last, new)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Of one that is shared out, all of it: every rank asks, in the same order. Others as they are."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What of a whole tensor goes where `like` is: this rank's part of it, or all."""
    if not isinstance(like, DTensor):
        return full
    # Without a source nothing is sent: all ranks have it.
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def copy_from_first(parameters: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor] | None) -> None:
    """Give the parameters, some of which are shared out, rank 0's `weights`, one after another. Raises ValueError, on
    all ranks, where they are not the same."""
    wrong: list[str | None] = [None]
    if weights is not None:
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        wrong = [next((name for name, p in parameters.items() if shapes.get(name) != p.shape), None)]
    dist.broadcast_object_list(wrong, 0)
    if wrong[0] is not None:
        raise ValueError(f"it has no {wrong[0]} of the model's shape")
    for name, parameter in parameters.items():
        full = torch.empty(parameter.shape) if weights is None else weights[name].float().contiguous()
        dist.broadcast(full, 0)
        parameter.copy_(part_of(full, parameter))


class WeightGatherer:
    """The weights of a model as they are published, adapters merged, whole, one after another: iterated over by rank 0
    within `lead`, as often and as far as it wants, while the others follow. The one that is given is all that is whole.
    """

    def __init__(self, model: Any, ranks: RankGroup = SINGLE_RANK) -> None:
        self._model, self._ranks = model, ranks

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._ranks.is_single:
            yield from named_weights(self._model)
            return
        self._say(AGAIN)
        weights = named_weights(self._model)
        while True:
            self._say(NEXT)
            found = next(weights, None)
            if found is None:
                return
            yield found[0], whole(found[1])

    def run_on_rank_zero(self, work: Callable[[], T]) -> T | None:
        """What rank 0's `work` gives; None for those that follow until it is done. All of them call."""
        if self._ranks.rank:
            self._follow()
            return None
        try:
            return work()
        finally:
            if not self._ranks.is_single:
                self._say(END)

    def _follow(self) -> None:
        weights: Iterator[tuple[str, torch.Tensor]] = iter(())
        while (said := self._say(NEXT)) != END:
            if said == AGAIN:
                weights = named_weights(self._model)
            else:
                found = next(weights, None)
                if found is not None:
                    whole(found[1])

    def _say(self, word: int) -> int:
        """What rank 0 says; of others nothing is heard."""
        said = torch.tensor([word])
        dist.broadcast(said, 0)
        return int(said)
