"""One run on Ray, from its actors' start to their end."""

from __future__ import annotations

import json
import logging

from marl_ray.actors.run_actors import RunActors, start_actors
from marl_ray.cluster.ray_connection import describe_cluster
from marl_ray.config import Config, to_yaml
from marl_ray.config.budget import training_budget
from marl_ray.core.concurrency import gather, run_with_background
from marl_ray.core.files import write_atomically
from marl_ray.core.state import TrainingResult
from marl_ray.core.text import pluralize
from marl_ray.launch.preflight import check_actors, check_logprob_agreement
from marl_ray.launch.scaling import serve_requests
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder, StoredHistory
from marl_ray.telemetry.console_sink import ConsoleSink
from marl_ray.telemetry.sinks import JsonlSink, MetricStream, Sink
from marl_ray.telemetry.timing import StartupTimer
from marl_ray.telemetry.trackers import TensorBoardSink, WandbSink
from marl_ray.trainer.context import RunInputs
from marl_ray.trainer.loop import Trainer

logger = logging.getLogger(__name__)


class TrainingSession:
    """A run's actors and its loop. `standing`: where the run goes on, or starts. `startup` has the parts of the start
    that are done."""

    def __init__(
        self,
        config: Config,
        problem: RunInputs,
        folder: RunFolder,
        standing: ResumeState,
        startup: StartupTimer | None = None,
    ) -> None:
        self.config, self.inputs, self.folder, self.standing = config, problem, folder, standing
        self.startup = StartupTimer() if startup is None else startup

    async def run(self) -> TrainingResult:
        """Start the actors, train, and end them. Raises UserError."""
        numbers = training_budget(self.config, len(self.inputs.train_tasks))
        logger.info(_starting(self.config))
        team = await start_actors(self.config, numbers.optimizer_steps, self.startup)
        try:
            await self._make_ready(team)
            logger.info(f"ready after {self.startup}; weights travel by {team.transport}")
            about = describe_cluster() | {"startup_s": self.startup.as_json()}
            write_atomically(self.folder.machine, json.dumps(about, indent=1).encode())
            rows = open_row_stream(self.config, self.folder, self.standing, numbers.total_steps)
            try:
                trainer = Trainer(self.config, self.inputs, self.folder, self.standing, team, rows)
                return await run_with_background(trainer.run(), serve_requests(self.folder.requests, team))
            finally:
                rows.close()
        finally:
            await team.close()

    async def _make_ready(self, team: RunActors) -> None:
        """What must hold before the first rollout: they fit together, and the generators have their weights."""
        with self.startup.part("tokenizers"):
            await check_actors(self.config, team, self.inputs, self.folder.path)
        with self.startup.part("weights"):
            if (checkpoint := self.standing.checkpoint) is not None:
                step, policy_folder = self.standing.state.step, self.folder.checkpoints.policy_folder
                await gather(*(x.load(str(policy_folder(checkpoint, x.policy)), step) for x in team.learners))
            of_policy = {x.policy: StoredHistory(self.folder, x.policy) for x in team.learners}
            await gather(*(x.connect(team.generators[x.policy.number], of_policy[x.policy]) for x in team.learners))
            await gather(*(x.update_weights(changed=True) for x in team.learners))
        with self.startup.part("agreement"):
            await check_logprob_agreement(self.config, team, self.inputs)
            # Under a new label engines share no keys and values with what they were compared on.
            await gather(*(x.update_weights(changed=False) for x in team.learners))


def _starting(config: Config) -> str:
    """What is going to be started, which takes a while."""
    replicas = sum(config.agents[policy.number].generator.replicas for policy in config.policies)
    workers = pluralize(config.resources.sandbox.workers, "sandbox worker")
    return f"starting {pluralize(replicas, 'generator')}, {pluralize(len(config.policies), 'learner')} and {workers}"


def open_row_stream(config: Config, folder: RunFolder, standing: ResumeState, total: int) -> MetricStream:
    """The sinks that the config asks for, of a run of `total` steps that stands there.

    From here on the folder is this config's: a resumed run's is written anew, with what was overridden.
    """
    done = standing.state.step
    folder.write_config(to_yaml(config), done)
    sinks: list[Sink] = [
        JsonlSink(folder.metrics, folder.episodes, done, standing.logged),
        ConsoleSink(total, done, config.policies, config.rollout.num_turns, config.loop.logging_steps),
    ]
    if config.wandb.project:
        sinks.append(WandbSink(config, folder.path))
    if config.output.tensorboard:
        sinks.append(TensorBoardSink(folder.tensorboard, folder.metrics))
    return MetricStream(sinks)
