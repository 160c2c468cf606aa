"""The placement group of a run: all of its places at once, or the reason why they cannot be had.

Ray places a bundle whose node is lost again as soon as some node has room; an actor that is started in it waits for
that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marl_ray.cluster.placement_plan import Bundle, PlacementPlan, describe_shortage, fits
from marl_ray.cluster.ray_connection import cluster_address
from marl_ray.cluster.ray_private import free_resources
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.telemetry.console_sink import say


class PlacementGroups:
    """The places that a plan asks for, reserved, and those of actors that came later, each in a group of its own."""

    def __init__(self, plan: PlacementPlan, group: PlacementGroup) -> None:
        self.plan = plan
        self._group = group
        self._added: dict[ActorId, PlacementGroup] = {}

    def of(self, owner: ActorId) -> PlacementGroupSchedulingStrategy:
        """Where Ray is to put this actor, in each of its lives."""
        if owner in self._added:
            return PlacementGroupSchedulingStrategy(self._added[owner], placement_group_bundle_index=0)
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=self.plan.index(owner))

    async def add(self, owner: ActorId, deadline_s: float) -> None:
        """A place for one more replica, as large as the first one's; that of the plan if it has been there before.

        Raises UserError when the cluster has not got it in time.
        """
        if owner in self._added or any(owner in slot.owners for slot in self.plan.slots):
            return
        slot = self.plan.slots[self.plan.index(ActorId(owner.kind, owner.policy))]
        need = " and ".join(f"{amount:g} {kind}" for kind, amount in slot.resources().items())
        none = UserError(f"the cluster has no place for {owner}: it needs {need} on one node, free")
        if not _can_ever_fit([slot]):
            raise none
        if not fits([slot], free_resources()):
            wait = f"waiting {deadline_s:g} s for it (resources.deadlines.placement_s)"
            say(f"the cluster has no room for {owner} now, which needs {need}: {wait}")
        group = placement_group([slot.resources()])
        if not await _ready(group, deadline_s):
            raise none
        self._added[owner] = group

    def drop(self, owner: ActorId) -> None:
        """Give back a place that was added; one of the plan is kept, for the actor to come back."""
        group = self._added.pop(owner, None)
        if group is not None:
            remove_placement_group(group)

    def free(self) -> None:
        """Give them back; ends the actors that are still there."""
        for group in (self._group, *self._added.values()):
            remove_placement_group(group)


async def reserve(plan: PlacementPlan, deadline_s: float) -> PlacementGroups:
    """The plan's places. Raises UserError, before any actor is created, when the cluster has not got them in time."""
    if not _can_ever_fit(plan.slots):
        raise UserError(describe_shortage(plan, free_resources()))
    group = placement_group([slot.resources() for slot in plan.slots], strategy="PACK")
    if not await _ready(group, deadline_s):
        raise UserError(describe_shortage(plan, free_resources()))
    return PlacementGroups(plan, group)


def _can_ever_fit(slots: Sequence[Bundle]) -> bool:
    """False where waiting is of no use: a Ray of our own cannot grow."""
    return bool(cluster_address()) or fits(slots, [_not_reserved()])


def _not_reserved() -> dict[str, float]:
    """What no place holds on the one node of a Ray of our own. Ray counts that of places that were just given back as
    free only a moment later."""
    (node,) = ray.nodes()
    left = dict(node["Resources"])
    for group in placement_group_table().values():
        if group["state"] != "REMOVED":
            for bundle in group["bundles"].values():
                for kind, amount in bundle.items():
                    left[kind] = left.get(kind, 0.0) - amount
    return left


async def _ready(group: PlacementGroup, deadline_s: float) -> bool:
    """Whether it is there in time; it is given up if not."""
    try:
        async with asyncio.timeout(deadline_s):
            await group.ready()
    except TimeoutError:
        remove_placement_group(group)
        return False
    return True
