"""Reservation of a run's resources in Ray placement groups.

Ray reschedules a bundle of a lost node as soon as another node has room. An actor that restarts in it waits until then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marl_ray.cluster.bundles import Bundle, pack
from marl_ray.cluster.placement_plan import PlacementPlan
from marl_ray.cluster.ray_connection import cluster_address
from marl_ray.cluster.ray_private import free_resources
from marl_ray.cluster.resource_text import describe_shortage
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId

logger = logging.getLogger(__name__)
GPU_QUERY_S = 120.0
"""Limit of the query for the GPUs of a bundle, in seconds. It starts a process on the bundle's node."""


@dataclass(frozen=True, slots=True)
class BundleGpus:
    """GPUs `indexes` of the `size` GPUs of bundle `bundle`, which the bundle's actors use in turns.

    Ray assigns a GPU, or a share of one, to one actor for its lifetime. These actors therefore request no GPU from Ray
    and select the GPUs of their bundle themselves.
    """

    bundle: int
    size: int
    indexes: tuple[int, ...]

    def make_visible(self) -> None:
        """Make CUDA see these GPUs only. Call it in an actor of the bundle, before CUDA starts; it blocks.
        Raises UserError if the bundle's node does not answer."""
        group = ray.util.get_current_placement_group()
        assert group is not None, "an actor that shares GPUs is in a bundle"
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=self.bundle)
        query = _assigned_gpus.options(num_gpus=self.size, scheduling_strategy=strategy).remote()
        try:
            gpus = ray.get(query, timeout=GPU_QUERY_S)
        except ray.exceptions.GetTimeoutError:
            raise UserError(f"bundle {self.bundle} did not report its GPUs within {GPU_QUERY_S:g} s") from None
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index] for index in self.indexes)


@ray.remote(num_cpus=0)
def _assigned_gpus() -> list[str]:
    return sorted(ray.get_runtime_context().get_accelerator_ids()["GPU"])


class PlacementGroups:
    """The reserved bundles of a plan, and one placement group per actor that was added later."""

    def __init__(self, plan: PlacementPlan, group: PlacementGroup) -> None:
        self.plan = plan
        self._group = group
        self._added: dict[ActorId, PlacementGroup] = {}

    def strategy(self, actor: ActorId) -> PlacementGroupSchedulingStrategy:
        """Return Ray's scheduling strategy for every incarnation of an actor."""
        if actor in self._added:
            return PlacementGroupSchedulingStrategy(self._added[actor], placement_group_bundle_index=0)
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self.plan.index(actor))

    def shared_gpus(self, actor: ActorId) -> BundleGpus | None:
        """Return the GPUs that an actor uses in turns with others; None if Ray assigns its GPUs."""
        indexes = self.plan.shared_gpus.get(actor)
        if indexes is None:
            return None
        bundle = self.plan.index(actor)
        return BundleGpus(bundle, int(self.plan.bundles[bundle].gpus), indexes)

    async def add(self, actor: ActorId, deadline_s: float) -> None:
        """Reserve a bundle for one more replica, like the first replica's. An actor of the plan keeps its bundle.

        Raises UserError if the cluster cannot provide the resources within `deadline_s` seconds.
        """
        if actor in self._added or any(actor in bundle.actors for bundle in self.plan.bundles):
            return
        first_replica = ActorId(actor.kind, actor.policy)
        bundle = self.plan.bundles[self.plan.index(first_replica)]
        need = " and ".join(f"{amount:g} {kind}" for kind, amount in bundle.resources().items())
        error = UserError(f"the cluster has no place for {actor}: it needs {need} on one node, free")
        if not _can_ever_fit([bundle]):
            raise error
        if pack([bundle], free_resources()) is None:
            wait = f"waiting {deadline_s:g} s for it (resources.deadlines.placement_s)"
            logger.info(f"the cluster has no room for {actor} now, which needs {need}: {wait}")
        group = placement_group([bundle.resources()])
        if not await _wait_ready(group, deadline_s):
            raise error
        self._added[actor] = group

    def remove(self, actor: ActorId) -> None:
        """Release an added bundle. Bundles of the plan stay reserved, so that the actor can be added again."""
        if actor in self._added:
            remove_placement_group(self._added.pop(actor))

    def release(self) -> None:
        """Release all bundles, which ends the actors in them."""
        for group in (self._group, *self._added.values()):
            remove_placement_group(group)


async def reserve(plan: PlacementPlan, deadline_s: float) -> PlacementGroups:
    """Reserve the bundles of a plan. Raises UserError if the cluster lacks the resources for `deadline_s` seconds."""
    if _can_ever_fit(plan.bundles):
        group = placement_group([bundle.resources() for bundle in plan.bundles], strategy="PACK")
        if await _wait_ready(group, deadline_s):
            return PlacementGroups(plan, group)
    raise UserError(describe_shortage(plan, free_resources()))


def _can_ever_fit(bundles: Sequence[Bundle]) -> bool:
    """Return False if waiting is pointless: a local Ray instance, which cannot grow, is too small."""
    if cluster_address():
        return True
    # Resources outside of placement groups. Ray's own count lags behind the removal of a placement group.
    unreserved = Counter(ray.nodes()[0]["Resources"])
    for group in placement_group_table().values():
        if group["state"] != "REMOVED":
            for bundle in group["bundles"].values():
                unreserved.subtract(bundle)
    return pack(bundles, [unreserved]) is not None


async def _wait_ready(group: PlacementGroup, deadline_s: float) -> bool:
    """Return whether a placement group is ready in time; remove it if not."""
    try:
        async with asyncio.timeout(deadline_s):
            await group.ready()
    except TimeoutError:
        remove_placement_group(group)
        return False
    return True
