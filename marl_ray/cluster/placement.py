"""The placement group of a run: all of its places at once, or the reason why they cannot be had."""

from __future__ import annotations

import asyncio

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marl_ray.cluster.local import cluster_address
from marl_ray.cluster.plan import Plan, fits, shortage
from marl_ray.cluster.ray_private import free_resources
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId


class Places:
    """The places that a plan asks for, reserved."""

    def __init__(self, plan: Plan, group: PlacementGroup) -> None:
        self.plan = plan
        self._group = group

    def of(self, owner: ActorId) -> PlacementGroupSchedulingStrategy:
        """Where Ray is to put this actor, in each of its lives."""
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self.plan.index(owner))

    def free(self) -> None:
        """Give them back; ends the actors that are still there."""
        remove_placement_group(self._group)


async def reserve(plan: Plan, deadline_s: float) -> Places:
    """The plan's places. Raises UserError, before any actor is created, when the cluster has not got them in time.

    A cluster on this machine cannot grow, so it is not waited for.
    """
    nodes = free_resources()
    if not cluster_address() and not fits(plan.slots, nodes):
        raise UserError(shortage(plan, nodes))
    group = placement_group([slot.resources() for slot in plan.slots], strategy="PACK")
    try:
        await asyncio.wait_for(_ready(group), deadline_s)
    except TimeoutError:
        remove_placement_group(group)
        raise UserError(shortage(plan, free_resources())) from None
    return Places(plan, group)


async def _ready(group: PlacementGroup) -> None:
    await group.ready()
