"""One run on Ray, from its actors' start to their end."""

from __future__ import annotations

import time
from pathlib import Path

from marl_ray.actors.team import Team, start_team
from marl_ray.config import to_yaml
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.state import TrainerState
from marl_ray.core.waiting import together
from marl_ray.runs.check import Problem
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.preflight import check_team
from marl_ray.telemetry.console import Console, say
from marl_ray.telemetry.files import Files
from marl_ray.telemetry.stream import RowStream, Sink
from marl_ray.telemetry.wandb import Wandb
from marl_ray.trainer import Result, Trainer


class Session:
    """`resumed`: the checkpoint to go on from, and where the loop stood."""

    def __init__(
        self, config: Config, problem: Problem, folder: RunFolder, resumed: tuple[Path, TrainerState] | None
    ) -> None:
        self.config, self.problem, self.folder = config, problem, folder
        self.checkpoint = resumed and resumed[0]
        self.first = resumed[1] if resumed else TrainerState(0, 0, 0)

    async def run(self) -> Result:
        """Start the actors, train, and end them. Raises UserError."""
        started = time.monotonic()
        numbers = arithmetic(self.config, len(self.problem.train_tasks))
        team = await start_team(self.config, numbers.optimizer_steps, say)
        try:
            await self._make_ready(team)
            say(f"actors ready after {time.monotonic() - started:.0f} s; weights travel by {team.transport}")
            rows = open_stream(self.config, self.folder, self.first.step, numbers.total_steps)
            try:
                return await Trainer(self.config, self.problem, self.folder, self.first, team, rows).run()
            finally:
                rows.close()
        finally:
            await team.close()

    async def _make_ready(self, team: Team) -> None:
        """What must hold before the first rollout: they fit together, and the generators have their weights."""
        await check_team(self.config, team, self.problem.environment, self.problem.train_tasks, self.folder.path)
        if self.checkpoint is not None:
            folders = [self.folder.checkpoints.agent_folder(self.checkpoint, x.agent) for x in team.learners]
            await together(*(x.load(str(f)) for x, f in zip(team.learners, folders, strict=True)))
        await together(*(x.connect(g) for x, g in zip(team.learners, team.generators, strict=True)))
        await together(*(x.publish(self.first.step) for x in team.learners))


def open_stream(config: Config, folder: RunFolder, done: int, total: int) -> RowStream:
    """The sinks that the config asks for, of a run that has done `done` of `total` steps.

    From here on the folder is this config's: a resumed run's is written anew, with what was overridden.
    """
    folder.config.write_text(to_yaml(config))
    sinks: list[Sink] = [
        Files(folder.metrics, folder.episodes, config.output.episodes_per_step, done),
        Console(total, done, config.num_agents, config.rollout.num_turns, config.loop.logging_steps),
    ]
    if config.wandb.project:
        sinks.append(Wandb(config, folder.path))
    return RowStream(sinks)
