"""Playing an evaluation: its actors, its episodes, and what is measured of them.

The episodes are played by the code of training's evaluations, one joint action a turn. So the samples of a task are
independent from the first turn on, as pass@k wants them, and the first of them is what a training with
`eval_num_generations: 1` evaluates.
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

AT_ONCE = 256
"""Episodes in play: enough for engines to batch, and few enough that no request waits for long."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What is to be played: `samples` episodes of each task by each contender, by one of PROTOCOLS.

    `adapters`: those of the evaluated_models' models that are one, and the models that they are for.
    """

    config: Config
    evaluated_models: Sequence[EvaluatedModel]
    tasks: Sequence[Task]
    samples: int
    protocol: str
    adapters: Mapping[str, str] = field(default_factory=dict)


def evaluate(evaluation: EvaluationPlan, hear: Callable[[EvaluatedModel, list[list[Episode]]], None]) -> None:
    """Play it, on the cluster or on this machine; `hear` gets each contender's episodes, by task, when they are all
    played. Raises UserError, and KeyboardInterrupt when it is stopped."""
    with StopSignals() as signals:
        try:
            logger.info(connect(evaluation.config.output.verbose))
            signals.run(lambda: _evaluate(evaluation, hear))
        finally:
            disconnect()


async def _evaluate(evaluation: EvaluationPlan, hear: Callable[[EvaluatedModel, list[list[Episode]]], None]) -> None:
    ensemble = EvaluationActors(evaluation.config)
    try:
        await ensemble.start()
        for contender in evaluation.evaluated_models:
            agents = range(contender.config.num_agents)
            generators = await ensemble.start_generators([policy_config(contender, agent) for agent in agents])
            hear(contender, await _play(evaluation, contender, generators, ensemble.sandbox))
    finally:
        await ensemble.close()


async def _play(
    evaluation: EvaluationPlan, contender: EvaluatedModel, generators: Sequence[CompletionGenerator], sandbox: Executor
) -> list[list[Episode]]:
    """The episodes of each task, in order."""
    config, tasks, samples = contender.config, evaluation.tasks, evaluation.samples
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    transition = Transition(config.external, environment)
    in_play = asyncio.Semaphore(AT_ONCE)
    with tqdm(
        total=len(tasks) * samples,
        desc=contender.label,
        disable=progress_bar_disabled(),
        dynamic_ncols=True,
        leave=False,
    ) as bar:

        async def play(task: Task, sample: int) -> Episode:
            async with in_play:
                through = PROTOCOLS[evaluation.protocol](generators)
                runner = EpisodeRunner(config, environment, transition, through, sandbox)
                episode = await runner.evaluate_task(task, 1, sample)
            bar.update()
            return episode

        episodes = await gather(*(play(task, sample) for task in tasks for sample in range(samples)))
    return [episodes[start : start + samples] for start in range(0, len(episodes), samples)]
