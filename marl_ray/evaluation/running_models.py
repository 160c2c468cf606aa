"""One model of a run, checkpoint or export with its actors, for commands that play with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from marl_ray.actors.generator_group import GeneratorGroup
from marl_ray.actors.run_actors import EvaluationActors
from marl_ray.actors.sandbox_settings import check_local_machine, check_sandbox
from marl_ray.cluster.cluster_health import watch_head
from marl_ray.cluster.ray_connection import connect, disconnect
from marl_ray.config import Config
from marl_ray.core.stop_signals import StopSignals
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.base import BaseEnvironment, Executor
from marl_ray.evaluation.model_sources import (
    EvaluatedModel,
    check_models,
    evaluated_models,
    find_model_sources,
    merged_adapters,
    policy_config,
)
from marl_ray.external.transition import transition_of

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A checked model, with the base models of its adapters by folder, and its environment before any actor starts."""

    model: EvaluatedModel
    adapters: dict[str, str]
    environment: BaseEnvironment


@dataclass(frozen=True, slots=True)
class RunningModel:
    """The environment of a model with its running actors. `generators` has one entry per agent."""

    config: Config
    environment: BaseEnvironment
    generators: list[GeneratorGroup]
    sandbox: Executor


def prepare_model(name: str, config: Config) -> PreparedModel:
    """Check a model and its environment before any actor starts. Raises UserError."""
    (source,) = find_model_sources([name], config.agents)
    (model,) = evaluated_models([source], config, swap=False)
    environment = ENVIRONMENTS.get(config.environment).from_config(model.config)
    transition_of(config.external, environment)
    check_sandbox(config.sandbox)
    adapters = check_models([model], [source], config.model)
    check_local_machine(config.agents, config.lora, config.resources, config.sandbox)
    return PreparedModel(model, adapters, environment)


def run_with_model(prepared: PreparedModel, work: Callable[[RunningModel], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `work`, which runs on the cluster or on this machine with the actors of a model. Raises
    UserError, and KeyboardInterrupt when stopped."""
    settings = prepared.model.config

    async def run(model: EvaluatedModel) -> T:
        config = model.config
        environment = prepared.environment
        actors = EvaluationActors(config.resources, config.sandbox)
        try:
            await actors.start()
            models = [policy_config(model, agent) for agent in range(config.num_agents)]
            generators = await actors.start_generators(models)
            return await work(RunningModel(config, environment, generators, actors.sandbox))
        finally:
            await abilities.close(environment)
            await actors.close()

    with (
        on_cluster(settings.output.verbose) as signals,
        merged_adapters([prepared.model], prepared.adapters, settings.model) as merged,
    ):
        return signals.run(lambda: run(merged[0]))


@contextmanager
def on_cluster(verbose: bool) -> Iterator[StopSignals]:
    """Connect to Ray, on the cluster or on this machine, and disconnect at the end. Raises UserError."""
    with StopSignals() as signals:
        try:
            logger.info(connect(verbose))
            with watch_head(signals.exit_process):  # without shutting Ray down, which would wait for the lost process
                yield signals
        finally:
            disconnect()
