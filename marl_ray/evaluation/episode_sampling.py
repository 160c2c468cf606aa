"""Sampling of evaluation episodes: the actors of an evaluation, and the episodes of each model.

Episodes use the code of training's evaluations with one joint action per turn, so the samples of a task are independent
from the first turn on, as pass@k requires. The first sample equals a training evaluation with `eval_num_generations: 1`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from marl_ray.actors.evaluation_actors import EvaluationActors
from marl_ray.cluster.ray_connection import connect, disconnect
from marl_ray.config import Config
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Episode, Task
from marl_ray.core.stop_signals import StopSignals
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Executor
from marl_ray.evaluation.model_sources import EvaluatedModel, policy_config
from marl_ray.evaluation.protocols import PROTOCOLS
from marl_ray.external.transition import Transition
from marl_ray.rollout.episode_runner import CompletionGenerator, EpisodeRunner
from marl_ray.telemetry.logs import progress_bar_disabled

logger = logging.getLogger(__name__)

MAX_CONCURRENT_EPISODES = 256
"""Enough for engines to batch, and few enough that no request waits for long."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """A checked evaluation: `samples` episodes of each task by each model, under one of PROTOCOLS.

    `adapters` maps the folders of models that are LoRA adapters to their base models.
    """

    config: Config
    models: Sequence[EvaluatedModel]
    tasks: Sequence[Task]
    samples: int
    protocol: str
    adapters: Mapping[str, str] = field(default_factory=dict)


OnModelDone = Callable[[EvaluatedModel, list[list[Episode]]], None]
"""Called with a model and its episodes by task."""


def sample_episodes(plan: EvaluationPlan, on_model_done: OnModelDone) -> None:
    """Sample all episodes, on the cluster or on this machine.

    Raises UserError, and KeyboardInterrupt when it is stopped.
    """
    with StopSignals() as signals:
        try:
            logger.info(connect(plan.config.output.verbose))
            signals.run(lambda: _sample_episodes(plan, on_model_done))
        finally:
            disconnect()


async def _sample_episodes(plan: EvaluationPlan, on_model_done: OnModelDone) -> None:
    actors = EvaluationActors(plan.config)
    try:
        await actors.start()
        for model in plan.models:
            agents = range(model.config.num_agents)
            generators = await actors.start_generators([policy_config(model, agent) for agent in agents])
            on_model_done(model, await _episodes_of(plan, model, generators, actors.sandbox))
    finally:
        await actors.close()


async def _episodes_of(
    plan: EvaluationPlan, model: EvaluatedModel, generators: Sequence[CompletionGenerator], sandbox: Executor
) -> list[list[Episode]]:
    """Return the episodes of each task, in order."""
    config, tasks, samples = model.config, plan.tasks, plan.samples
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    transition = Transition(config.external, environment)
    limit = asyncio.Semaphore(MAX_CONCURRENT_EPISODES)
    with tqdm(
        total=len(tasks) * samples, desc=model.label, disable=progress_bar_disabled(), dynamic_ncols=True, leave=False
    ) as bar:

        async def run_episode(task: Task, sample: int) -> Episode:
            async with limit:
                runner = EpisodeRunner(config, environment, transition, PROTOCOLS[plan.protocol](generators), sandbox)
                episode = await runner.evaluate_task(task, 1, sample)
            bar.update()
            return episode

        episodes = await gather(*(run_episode(task, sample) for task in tasks for sample in range(samples)))
    return [episodes[start : start + samples] for start in range(0, len(episodes), samples)]
