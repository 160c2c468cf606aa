"""Assignment of GPUs to engines and learner ranks that share them (`resources.colocate`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl_ray.config import Config
from marl_ray.config.keys import key_of
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.core.text import pluralize


class PlacementError(UserError):
    """A combination of resources that no cluster can provide."""


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """Numbers of the GPUs of each engine and learner rank, from 0 to `total` - 1. A bundle has `per_bundle` GPUs."""

    gpus: Mapping[ActorId, tuple[int, ...]]
    total: int
    per_bundle: int

    def devices(self) -> dict[int, int]:
        """Return the shared device of each GPU. All GPUs of one policy belong to one device."""
        used: dict[PolicyId | None, set[int]] = {}
        for id, gpus in self.gpus.items():
            used.setdefault(id.policy, set()).update(gpus)
        devices: list[set[int]] = []
        for gpus_of_policy in used.values():
            joined = gpus_of_policy.union(*(device for device in devices if device & gpus_of_policy))
            devices = [device for device in devices if not device & joined] + [joined]
        return {gpu: number for number, device in enumerate(sorted(devices, key=min)) for gpu in device}


def assign_gpus(config: Config, engine_gpus: Mapping[PolicyId, float]) -> SharedGpus:
    """Assign GPUs to engines one after another, and then to learner ranks. `engine_gpus` is the number of GPUs per
    engine of each policy, or the share of one.

    A policy has a rank on each GPU of its engines or on all GPUs, because an engine receives its weights from the rank
    on its GPU. Raises PlacementError for other numbers of ranks, and for engines that need more than a GPU's memory.
    """
    parallel = {policy: config.agents[policy.number].generator.tensor_parallel for policy in engine_gpus}
    per_bundle = max(parallel.values(), default=1)
    gpus: dict[ActorId, tuple[int, ...]] = {}
    allocated: list[float] = []  # share of each GPU
    for policy, amount in engine_gpus.items():
        share = amount / parallel[policy]
        for replica in range(config.agents[policy.number].generator.replicas):
            if parallel[policy] > 1 or not allocated or allocated[-1] + share > 1 + 1e-9:
                while len(allocated) % per_bundle + parallel[policy] > per_bundle:
                    allocated.append(1.0)  # left unused: an engine does not span bundles
                allocated += [0.0] * parallel[policy]
            numbers = range(len(allocated) - parallel[policy], len(allocated))
            for number in numbers:
                allocated[number] += share
            gpus[ActorId("generator", policy, replica)] = tuple(numbers)
    _check_memory(config, gpus)
    total = -(-len(allocated) // per_bundle) * per_bundle
    for policy in engine_gpus:
        own = sorted({number for id, numbers in gpus.items() if id.policy == policy for number in numbers})
        ranks = config.agents[policy.number].learner.ranks
        if ranks not in (len(own), total):
            every = f", or to {total} to train on all GPUs" if total > len(own) else ""
            raise PlacementError(
                f"resources.colocate: the engines of {policy} are on {pluralize(len(own), 'GPU')} of {total}, and "
                f"{key_of(config, policy.number, 'learner.ranks')} is {ranks}: set it to {len(own)}{every}"
            )
        trained_on = own if ranks == len(own) else range(total)
        gpus |= {ActorId("learner", policy, rank): (number,) for rank, number in enumerate(trained_on)}
    return SharedGpus(gpus, total, per_bundle)


def _check_memory(config: Config, engines: Mapping[ActorId, tuple[int, ...]]) -> None:
    for gpu in sorted({gpu for gpus in engines.values() for gpu in gpus}):
        policies = [id.policy for id, gpus in engines.items() if gpu in gpus and id.policy is not None]
        utilization = sum(config.agents[policy.number].generator.gpu_memory_utilization for policy in policies)
        if utilization > 1:
            raise PlacementError(
                f"resources.colocate: the engines of {' and '.join(map(str, policies))} share one GPU, and their "
                f"resources.generator.gpu_memory_utilization sum to {utilization:g}: lower it to "
                f"{int(95 / len(policies)) / 100:g}, or give each a GPU (resources.generator.gpus: 1)"
            )
