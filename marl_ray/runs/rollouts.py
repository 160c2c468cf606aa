"""The batches of a run, played or brought from the log, each complete once it is in the log.

Without dynamic_sampling a batch is a step's tasks, and k + 1 of them are played at the same time at most. With it a
batch is as many draws as it takes, which are played one by one (`marl_ray.rollout.draws` says which may start and which
batch they are in).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from marl_ray.config.arithmetic import most_draws
from marl_ray.config.schema import Config
from marl_ray.core.streams import draw_task, draw_tasks
from marl_ray.core.tree import Episode, Task
from marl_ray.core.waiting import Changes, crew
from marl_ray.credit.batches import is_informative
from marl_ray.rollout.assembly import Assembly, assembled
from marl_ray.rollout.draws import Draws
from marl_ray.rollout.pipeline import Pipeline
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.batch_log import LoggedStep
from marl_ray.runs.health import Health
from marl_ray.runs.resume import Standing
from marl_ray.telemetry.records import record_of
from marl_ray.telemetry.rows import joint_samples, rollout_row
from marl_ray.telemetry.timeline import Timeline


class Log(Protocol):
    """The batch log."""

    def append(self, step: LoggedStep) -> None: ...

    def read(self, step: int, num_agents: int) -> LoggedStep: ...

    def draws(self, step: int) -> int: ...

    def drop_before(self, step: int) -> None: ...


class Executions(Protocol):
    """Counts what the sandbox has executed since it was asked last."""

    def take_executions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Coordination:
    """What those who play share with those who learn: who may begin with what, who waits, what is found and told."""

    config: Config
    pipeline: Pipeline
    changes: Changes
    health: Health
    timeline: Timeline


class Rollouts:
    """Of a run that goes on where `standing` says, up to batch `total`.

    assemblies: batches that are played, or not yet learned from by all, by step; logged: those that are in the log and
    not yet recorded.
    """

    def __init__(
        self,
        common: Coordination,
        tasks: list[Task],
        player: EpisodePlayer,
        sandbox: Executions,
        standing: Standing,
        log: Log,
    ) -> None:
        self.common, self.tasks, self.player, self.sandbox = common, tasks, player, sandbox
        self.standing, self.log = standing, log
        self.total = common.pipeline.total
        self.size = min(common.config.rollout.rollout_buffer_size, len(tasks))
        """Draws that a step learns from; the last of an epoch may have fewer."""
        self.assemblies: dict[int, Assembly] = {}
        self.logged: dict[int, LoggedStep] = {}
        self._waiting: dict[int, Episode] = {}
        """With dynamic_sampling: episodes that are over, by draw, whose batch is not known yet."""
        self._drawn: dict[int, dict[int, tuple[Episode, bool]]] = {}
        """Then: all episodes of batches that are not yet in the log, by batch and draw, and which are informative."""

    def take(self, step: int) -> LoggedStep:
        """A batch that all have learned from; it is forgotten here."""
        del self.assemblies[step]
        return self.logged.pop(step)

    def coroutines(self) -> list[Coroutine[Any, Any, None]]:
        """They bring every batch, each as soon as it may start."""
        if self.common.config.rollout.dynamic_sampling:
            draws = self._draws_from_here()
            return [self._relearn(), self._draw(draws), self._log_drawn(draws)]
        lanes = min(self.common.config.rollout.max_staleness, self.total) + 1
        return [self._roll_out(lane, lanes) for lane in range(lanes)]  # batch b + k + 1 waits for batch b in any case

    async def _roll_out(self, lane: int, lanes: int) -> None:
        """Play every `lanes`-th batch. The first lane brings those of the log before."""
        if lane == 0:
            await self._relearn()
        for step in range(self.standing.logged + lane, self.total, lanes):
            await self.common.changes.until(partial(self._may_start, step))
            await self.play(step)

    def _may_start(self, step: int) -> bool:
        """Whether it is this batch that may start now."""
        return self.common.pipeline.next_batch == step

    async def play(self, step: int) -> None:
        """Play a batch's episodes. Learners take its nodes as they come, and may use them once they are in the log."""
        config = self.common.config
        drawn = draw_tasks(len(self.tasks), config.rollout.rollout_buffer_size, step, config.seed)
        assembly = self._begin(len(drawn))
        episodes = await self.player.rollout([self.tasks[i] for i in drawn], step, assembly)
        await self._complete(step, episodes)

    def _begin(self, draws: int | None) -> Assembly:
        """The batch that may start now is started; `draws` as in `Assembly`."""
        common = self.common
        step = common.pipeline.start()
        common.timeline.play(step)
        self.assemblies[step] = assembly = Assembly(step, draws, common.config, common.changes.tell)
        common.changes.tell()
        return assembly

    async def _complete(self, step: int, episodes: list[Episode], skipped: tuple[int, ...] = ()) -> None:
        """A batch's episodes are over: look at them, and write it to the log. `skipped`: see `LoggedStep`."""
        common, config = self.common, self.common.config
        seconds, executions = common.timeline.played(step), self.sandbox.take_executions()
        common.health.check_rollout(episodes, step)
        batches = self.assemblies[step].batches
        row, draws = rollout_row(config, episodes, batches, seconds, executions), 0
        if config.rollout.dynamic_sampling:
            row["rollout/skipped"], draws = len(skipped), len(episodes)
            common.health.check_draws(step, draws, draws - len(skipped), self.size, self.standing.has_batches)
        rollout = LoggedStep(
            step=step,
            batches=tuple(batches),
            joint_samples=joint_samples(episodes),
            row=row,
            episodes=tuple(map(record_of, episodes[: config.output.episodes_per_step])),
            draws=draws,
            skipped=skipped,
        )
        await common.changes.until(lambda: common.pipeline.in_log == step)
        await asyncio.to_thread(self.log.append, rollout)
        self.logged[step] = rollout
        common.pipeline.logged(step)
        common.changes.tell()

    def _draws_from_here(self) -> Draws:
        """Where the log ends."""
        state, logged = self.standing.state, self.standing.logged
        draw = state.draws + sum(map(self.log.draws, range(state.step, logged)))
        return Draws(self.size, most_draws(self.common.config, self.size), logged, draw, self.total)

    async def _draw(self, draws: Draws) -> None:
        """Play draws as they may start, as many as it takes."""
        pipeline = self.common.pipeline

        def something_to_do() -> bool:
            return draws.batch == self.total or draws.may_start(pipeline.open_until)

        async with crew() as playing:
            while True:
                await self.common.changes.until(something_to_do)
                if draws.batch == self.total:
                    return
                batch = draws.latest_batch
                while pipeline.started <= batch:
                    self._drawn[self._begin(None).step] = {}
                playing.create_task(self._play_draw(draws, draws.start(), batch))

    async def _play_draw(self, draws: Draws, draw: int, batch: int) -> None:
        """Play one draw, in `batch` or one before, and give the learners all that are known to be theirs by it."""
        config = self.common.config
        task, size = self.tasks[draw_task(len(self.tasks), draw, config.seed)], config.rollout.num_generations
        self._waiting[draw] = played = await self.player.play(task, size, "train", draw, priority=batch)
        for placed in draws.played(draw, is_informative(played, config)):
            episode, assembly = self._waiting.pop(placed.draw), self.assemblies[placed.batch]
            self._drawn[placed.batch][placed.draw] = episode, placed.informative
            if placed.informative:
                assembly.add_episode(placed.draw, episode)
            if placed.last:
                assembly.close()
        self.common.changes.tell()

    async def _log_drawn(self, draws: Draws) -> None:
        """Complete batches in their order."""
        for step in range(self.standing.logged, self.total):
            await self.common.changes.until(partial(draws.is_complete, step))
            drawn = self._drawn.pop(step)
            skipped = tuple(draw for draw, (_, informative) in drawn.items() if not informative)
            await self._complete(step, [episode for episode, _ in drawn.values()], skipped)

    async def _relearn(self) -> None:
        """Bring the batches that are in the log already."""
        for step in range(self.standing.state.step, self.standing.logged):
            await self._take_from_log(step)

    async def _take_from_log(self, step: int) -> None:
        """A batch that was played before; not sooner than somebody needs it."""
        common = self.common
        await common.changes.until(lambda: step <= min(common.pipeline.versions) + 1)
        self.logged[step] = rollout = await asyncio.to_thread(self.log.read, step, common.config.num_agents)
        self.assemblies[step] = assembled(step, rollout.batches, common.config)
        common.changes.tell()
