"""Assignment of GPUs to engines and learner ranks that share them (`resources.colocate`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_ray.cluster.bundles import ROUNDING
from marl_ray.config import AgentConfig
from marl_ray.config.keys import resource_key
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
        gpus_of_policies: dict[PolicyId | None, set[int]] = {}
        for id, gpus in self.gpus.items():
            gpus_of_policies.setdefault(id.policy, set()).update(gpus)
        # Policies with a common GPU have one device, directly or through other policies.
        devices: list[set[int]] = []
        for joined in gpus_of_policies.values():
            separate = []
            for device in devices:
                if device & joined:
                    joined = joined | device
                else:
                    separate.append(device)
            devices = [*separate, joined]
        numbers: dict[int, int] = {}
        for number, device in enumerate(sorted(devices, key=min)):
            numbers |= dict.fromkeys(device, number)
        return numbers


def assign_gpus(agents: Sequence[AgentConfig], engine_gpus: Mapping[PolicyId, float]) -> SharedGpus:
    """Assign GPUs to engines one after another, and then to learner ranks. `engine_gpus` is the number of GPUs per
    engine of each policy, or the share of one.

    A policy has a rank on each GPU of its engines or on all GPUs, because an engine receives its weights from the rank
    on its GPU. Raises PlacementError for other numbers of ranks, and for engines that need more than a GPU's memory.
    """
    generators = {policy: agents[policy.first_agent].generator for policy in engine_gpus}
    per_bundle = max((generator.tensor_parallel for generator in generators.values()), default=1)
    gpus: dict[ActorId, tuple[int, ...]] = {}
    used: list[float] = []
    """Used share of each GPU so far."""
    for policy, generator in generators.items():
        parallel = generator.tensor_parallel
        share = engine_gpus[policy] / parallel
        for replica in range(generator.replicas):
            fits_on_last = bool(used) and used[-1] + share <= 1 + ROUNDING
            if parallel > 1 or not fits_on_last:
                while len(used) % per_bundle + parallel > per_bundle:
                    used.append(1.0)  # left unused: an engine does not span bundles
                used += [0.0] * parallel
            numbers = range(len(used) - parallel, len(used))
            for number in numbers:
                used[number] += share
            gpus[ActorId("generator", policy, replica)] = tuple(numbers)
    _check_memory(agents, gpus)
    total = math.ceil(len(used) / per_bundle) * per_bundle
    for policy in engine_gpus:
        for rank, number in enumerate(_gpus_of_ranks(agents, policy, gpus, total)):
            gpus[ActorId("learner", policy, rank)] = (number,)
    return SharedGpus(gpus, total, per_bundle)


def _gpus_of_ranks(
    agents: Sequence[AgentConfig], policy: PolicyId, gpus: Mapping[ActorId, tuple[int, ...]], total: int
) -> Sequence[int]:
    """Return the GPUs of a policy's ranks: the GPUs of its engines, or all."""
    gpus_of_engines: set[int] = set()
    for id, numbers in gpus.items():
        if id.policy == policy:
            gpus_of_engines.update(numbers)
    count = len(gpus_of_engines)
    agent = agents[policy.first_agent]
    ranks = agent.learner.ranks
    if ranks == count:
        return sorted(gpus_of_engines)
    if ranks == total:
        return range(total)
    key = resource_key(agent, policy.first_agent, "learner.ranks")
    remedy = f"set it to {count}"
    if total > count:
        remedy += f", or to {total} to train on all GPUs"
    raise PlacementError(
        f"resources.colocate: the engines of {policy} are on {pluralize(count, 'GPU')} of {total}, and {key} is "
        f"{ranks}: {remedy}"
    )


def _check_memory(agents: Sequence[AgentConfig], engines: Mapping[ActorId, tuple[int, ...]]) -> None:
    """Raise PlacementError if the engines on a GPU may use more than all of its memory together."""
    policies_on: dict[int, list[PolicyId]] = {}
    for engine, gpus in engines.items():
        assert engine.policy is not None, "an engine has a policy"
        for gpu in gpus:
            policies_on.setdefault(gpu, []).append(engine.policy)
    for _, policies in sorted(policies_on.items()):
        utilization = sum(agents[policy.first_agent].generator.gpu_memory_utilization for policy in policies)
        if utilization > 1:
            lower = int(95 / len(policies)) / 100  # together 0.95, with two digits each
            raise PlacementError(
                f"resources.colocate: the engines of {' and '.join(map(str, policies))} share one GPU, and their "
                f"resources.generator.gpu_memory_utilization sum to {utilization:g}: lower it to {lower:g}, or give "
                "each a GPU (resources.generator.gpus: 1)"
            )
