"""Actors of an evaluation: sandbox workers, and generators that serve the weights of their folders. Nobody learns."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import ray

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.run_actors import generator_group, sandbox_pool
from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.cluster.placement_group import PlacementGroups, reserve
from marl_ray.cluster.placement_plan import generator_plan, sandbox_plan
from marl_ray.config import Config
from marl_ray.core.concurrency import gather

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Policy:
    """The generators of one policy, and their places."""

    group: GeneratorGroup
    places: PlacementGroups

    async def close(self) -> None:
        await self.group.close()
        self.places.release()


class EvaluationActors:
    """Policies that play one after another, and the sandbox workers that stay.

    At any time there are the generators of one line-up alone, so never more than a run of it has.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._said: set[str] = set()
        self._policies: dict[Hashable, _Policy] = {}
        self._places: PlacementGroups | None = None
        self.sandbox: SandboxPool

    async def start(self) -> None:
        """Start the sandbox workers. Raises UserError where the cluster has no place for them, or no isolation."""
        self._places = await reserve(sandbox_plan(self._config), self._config.resources.deadlines.placement_s)
        self.sandbox = sandbox_pool(self._config, self._places)
        for note in await self.sandbox.start():
            logger.info(note)

    async def start_generators(self, configs: Sequence[Config]) -> list[GeneratorGroup]:
        """Generators for each agent, as `configs[agent]` describes that agent: those that are there, or new ones.

        Agents that play the same weights share them. The others of the line-up before are ended. Raises UserError where
        the cluster has no place for them, and what a generator raises that does not start.
        """
        wanted = [_key(config, agent) for agent, config in enumerate(configs)]
        for key in self._policies.keys() - wanted:
            await self._policies.pop(key).close()
        first = {key: wanted.index(key) for key in wanted if key not in self._policies}
        await gather(*(self._start(key, configs[agent], agent) for key, agent in first.items()))
        return [self._policies[key].group for key in wanted]

    async def close(self) -> None:
        """End all actors and free their places."""
        for policy in self._policies.values():
            await policy.close()
        if self._places is not None:
            await self.sandbox.close()
            self._places.release()

    async def _start(self, key: Hashable, config: Config, agent: int) -> None:
        plan = generator_plan(config, agent, cluster_has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
        places = await reserve(plan, config.resources.deadlines.placement_s)
        policy = _Policy(generator_group(config, agent, places), places)
        try:
            notes = await policy.group.start()
            await policy.group.serve_initial_weights()
        except BaseException:
            await policy.close()
            raise
        self._policies[key] = policy
        for note in notes:
            if note not in self._said:
                self._said.add(note)
                logger.info(note)


def _key(config: Config, agent: int) -> Hashable:
    """What generators are made from, as far as the agents of one evaluation differ in it."""
    settings = config.agents[agent]
    return (settings.name, settings.dtype, settings.generator, config.model.use_chat_template)
