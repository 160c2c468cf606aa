"""Actors of an evaluation: sandbox workers, and generators that serve the weights of model folders. Nothing is trained."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import ray

from marl_ray.actors.generator_group import GeneratorGroup, serve_initial_weights
from marl_ray.actors.run_actors import make_generator_group, make_sandbox_pool
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.cluster.placement_group import PlacementGroups, reserve
from marl_ray.cluster.placement_plan import generator_plan, sandbox_plan
from marl_ray.config import Config
from marl_ray.core.concurrency import gather

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _PlacedGroup:
    group: GeneratorGroup
    placement: PlacementGroups

    async def close(self) -> None:
        await self.group.close()
        self.placement.release()


class EvaluationActors:
    """Generators of the models that are evaluated at present, and sandbox workers for the whole evaluation.

    At most one generator group per agent exists at any time, so an evaluation needs no more resources than a run.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._logged: set[str] = set()
        self._groups: dict[Hashable, _PlacedGroup] = {}
        self._placement: PlacementGroups | None = None
        self.sandbox: SandboxPool

    async def start(self) -> None:
        """Start the sandbox workers. Raises UserError if the cluster lacks the resources or the required isolation."""
        self._placement = await reserve(sandbox_plan(self._config), self._config.resources.deadlines.placement_s)
        self.sandbox = make_sandbox_pool(self._config, self._placement)
        for note in await self.sandbox.start():
            logger.info(note)

    async def start_generators(self, configs: Sequence[Config]) -> list[GeneratorGroup]:
        """Return a generator group per agent for the model of the agent in `configs[agent]`.

        Agents with the same weights share a group. Existing groups are reused, and groups that are no longer needed are
        ended. Raises UserError if the cluster lacks the resources, and the error of a generator that does not start.
        """
        keys = [_group_key(config, agent) for agent, config in enumerate(configs)]
        for key in self._groups.keys() - keys:
            await self._groups.pop(key).close()
        new = {key: keys.index(key) for key in keys if key not in self._groups}
        await gather(*(self._start_group(key, configs[agent], agent) for key, agent in new.items()))
        return [self._groups[key].group for key in keys]

    async def close(self) -> None:
        """End all actors and release their resources."""
        for group in self._groups.values():
            await group.close()
        if self._placement is not None:
            await self.sandbox.close()
            self._placement.release()

    async def _start_group(self, key: Hashable, config: Config, agent: int) -> None:
        plan = generator_plan(config, agent, cluster_has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
        deadlines = config.resources.deadlines
        placement = await reserve(plan, deadlines.placement_s)
        group = make_generator_group(config, agent, placement, serve_initial_weights(deadlines))
        placed = _PlacedGroup(group, placement)
        try:
            notes = await group.start()
        except BaseException:
            await placed.close()
            raise
        self._groups[key] = placed
        for note in notes:
            if note not in self._logged:
                self._logged.add(note)
                logger.info(note)


def _group_key(config: Config, agent: int) -> Hashable:
    """Return the settings in which the generators of one evaluation differ."""
    settings = config.agents[agent]
    return (settings.name, settings.dtype, settings.generator, config.model.use_chat_template)
