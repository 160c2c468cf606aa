"""One run on Ray, from its actors' start to their end."""

from __future__ import annotations

import json

from marl_ray.actors.team import Team, start_team
from marl_ray.cluster.machine import describe_machine
from marl_ray.config import to_yaml
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.disk import write_atomically
from marl_ray.core.waiting import accompanied, together
from marl_ray.core.words import counted
from marl_ray.runs.check import Problem
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.history import PolicyHistory
from marl_ray.runs.preflight import check_agreement, check_team
from marl_ray.runs.resume import Standing
from marl_ray.runs.scaling import serve_requests
from marl_ray.telemetry.console import Console, say
from marl_ray.telemetry.files import Files
from marl_ray.telemetry.startup import StartUp
from marl_ray.telemetry.stream import RowStream, Sink
from marl_ray.telemetry.tensorboard import TensorBoard
from marl_ray.telemetry.wandb import Wandb
from marl_ray.trainer import Result, Trainer


class Session:
    """A run's actors and its loop. `standing`: where the run goes on, or starts. `startup` has the parts of the start
    that are done."""

    def __init__(
        self,
        config: Config,
        problem: Problem,
        folder: RunFolder,
        standing: Standing,
        startup: StartUp | None = None,
    ) -> None:
        self.config, self.problem, self.folder, self.standing = config, problem, folder, standing
        self.startup = StartUp() if startup is None else startup

    async def run(self) -> Result:
        """Start the actors, train, and end them. Raises UserError."""
        numbers = arithmetic(self.config, len(self.problem.train_tasks))
        say(_starting(self.config))
        team = await start_team(self.config, numbers.optimizer_steps, say, self.startup)
        try:
            await self._make_ready(team)
            say(f"ready after {self.startup}; weights travel by {team.transport}")
            about = describe_machine() | {"startup_s": self.startup.as_json()}
            write_atomically(self.folder.machine, json.dumps(about, indent=1).encode())
            rows = open_stream(self.config, self.folder, self.standing, numbers.total_steps)
            try:
                trainer = Trainer(self.config, self.problem, self.folder, self.standing, team, rows)
                return await accompanied(trainer.run(), serve_requests(self.folder.requests, team))
            finally:
                rows.close()
        finally:
            await team.close()

    async def _make_ready(self, team: Team) -> None:
        """What must hold before the first rollout: they fit together, and the generators have their weights."""
        with self.startup.part("tokenizers"):
            await check_team(self.config, team, self.problem.environment, self.problem.train_tasks, self.folder.path)
        with self.startup.part("weights"):
            if (checkpoint := self.standing.checkpoint) is not None:
                step, policy_folder = self.standing.state.step, self.folder.checkpoints.policy_folder
                await together(*(x.load(str(policy_folder(checkpoint, x.policy)), step) for x in team.learners))
            of_policy = {x.policy: PolicyHistory(self.folder, x.policy) for x in team.learners}
            await together(*(x.connect(team.generators[x.policy.number], of_policy[x.policy]) for x in team.learners))
            await together(*(x.publish(changed=True) for x in team.learners))
        with self.startup.part("agreement"):
            await check_agreement(self.config, team, self.problem.environment, self.problem.train_tasks)
            # Under a new label engines share no keys and values with what they were compared on.
            await together(*(x.publish(changed=False) for x in team.learners))


def _starting(config: Config) -> str:
    """What is going to be started, which takes a while."""
    replicas = sum(config.agents[policy.number].generator.replicas for policy in config.policies)
    workers = counted(config.resources.sandbox.workers, "sandbox worker")
    return f"starting {counted(replicas, 'generator')}, {counted(len(config.policies), 'learner')} and {workers}"


def open_stream(config: Config, folder: RunFolder, standing: Standing, total: int) -> RowStream:
    """The sinks that the config asks for, of a run of `total` steps that stands there.

    From here on the folder is this config's: a resumed run's is written anew, with what was overridden.
    """
    done = standing.state.step
    folder.write_config(to_yaml(config), done)
    sinks: list[Sink] = [
        Files(folder.metrics, folder.episodes, done, standing.logged),
        Console(total, done, config.policies, config.rollout.num_turns, config.loop.logging_steps),
    ]
    if config.wandb.project:
        sinks.append(Wandb(config, folder.path))
    if config.output.tensorboard:
        sinks.append(TensorBoard(folder.tensorboard, folder.metrics))
    return RowStream(sinks)
