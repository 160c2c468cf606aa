"""The batches of a run, played or brought from the log, each complete once it is in the log.

Without dynamic_sampling a batch is a step's tasks, and k + 1 of them are played at the same time at most. With it a
batch is as many draws as it takes, which are played one by one (`marl_ray.trainer.dynamic_sampling` says which may start and which
batch they are in).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from marl_ray.config import Config
from marl_ray.config.budget import max_prompts_per_step
from marl_ray.core.concurrency import Condition, task_group
from marl_ray.core.episode import Episode, Task
from marl_ray.core.random_streams import task_for_sample, tasks_for_step
from marl_ray.credit.groups import has_learning_signal
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.storage.batch_log import LoggedStep
from marl_ray.storage.resume import ResumeState
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import joint_samples, rollout_row
from marl_ray.telemetry.timeline import Timeline
from marl_ray.trainer.batch_builder import BatchBuilder, builder_from_log
from marl_ray.trainer.dynamic_sampling import DynamicSampler
from marl_ray.trainer.health import HealthMonitor
from marl_ray.trainer.scheduling import SchedulingGate


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
class LoopContext:
    """What those who play share with those who learn: who may begin with what, who waits, what is found and told."""

    config: Config
    gate: SchedulingGate
    condition: Condition
    health: HealthMonitor
    timeline: Timeline


class BatchProducer:
    """Of a run that goes on where `standing` says, up to batch `total`.

    assemblies: batches that are played, or not yet learned from by all, by step; logged: those that are in the log and
    not yet recorded.
    """

    def __init__(
        self,
        context: LoopContext,
        tasks: list[Task],
        runner: EpisodeRunner,
        sandbox: Executions,
        standing: ResumeState,
        log: Log,
    ) -> None:
        self.context, self.tasks, self.runner, self.sandbox = context, tasks, runner, sandbox
        self.standing, self.log = standing, log
        self.total = context.gate.total
        self.size = min(context.config.rollout.rollout_buffer_size, len(tasks))
        """Draws that a step learns from; the last of an epoch may have fewer."""
        self.assemblies: dict[int, BatchBuilder] = {}
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
        if self.context.config.rollout.dynamic_sampling:
            draws = self._draws_from_here()
            return [self._relearn(), self._draw(draws), self._log_drawn(draws)]
        lanes = min(self.context.config.rollout.max_staleness, self.total) + 1
        return [self._roll_out(lane, lanes) for lane in range(lanes)]  # batch b + k + 1 waits for batch b in any case

    async def _roll_out(self, lane: int, lanes: int) -> None:
        """Play every `lanes`-th batch. The first lane brings those of the log before."""
        if lane == 0:
            await self._relearn()
        for step in range(self.standing.logged + lane, self.total, lanes):
            await self.context.condition.wait_for(partial(self._may_start, step))
            await self.play(step)

    def _may_start(self, step: int) -> bool:
        """Whether it is this batch that may start now."""
        return self.context.gate.next_batch == step

    async def play(self, step: int) -> None:
        """Play a batch's episodes. Learners take its nodes as they come, and may use them once they are in the log."""
        config = self.context.config
        drawn = tasks_for_step(len(self.tasks), config.rollout.rollout_buffer_size, step, config.seed)
        assembly = self._begin(len(drawn))
        episodes = await self.runner.run_batch([self.tasks[i] for i in drawn], step, assembly)
        await self._complete(step, episodes)

    def _begin(self, draws: int | None) -> BatchBuilder:
        """The batch that may start now is started; `draws` as in `BatchBuilder`."""
        context = self.context
        step = context.gate.start()
        context.timeline.start_rollout(step)
        self.assemblies[step] = assembly = BatchBuilder(step, draws, context.config, context.condition.notify_all)
        context.condition.notify_all()
        return assembly

    async def _complete(self, step: int, episodes: list[Episode], skipped: tuple[int, ...] = ()) -> None:
        """A batch's episodes are over: look at them, and write it to the log. `skipped`: see `LoggedStep`."""
        context, config = self.context, self.context.config
        seconds, executions = context.timeline.finish_rollout(step), self.sandbox.take_executions()
        context.health.check_rollout(episodes, step)
        batches = self.assemblies[step].batches
        row, draws = rollout_row(config, episodes, batches, seconds, executions), 0
        if config.rollout.dynamic_sampling:
            row["rollout/skipped"], draws = len(skipped), len(episodes)
            context.health.check_draws(step, draws, draws - len(skipped), self.size, self.standing.has_batches)
        rollout = LoggedStep(
            step=step,
            batches=tuple(batches),
            joint_samples=joint_samples(episodes),
            row=row,
            episodes=tuple(map(episode_record, episodes[: config.output.episodes_per_step])),
            draws=draws,
            skipped=skipped,
        )
        await context.condition.wait_for(lambda: context.gate.in_log == step)
        await asyncio.to_thread(self.log.append, rollout)
        self.logged[step] = rollout
        context.gate.logged(step)
        context.condition.notify_all()

    def _draws_from_here(self) -> DynamicSampler:
        """Where the log ends."""
        state, logged = self.standing.state, self.standing.logged
        draw = state.draws + sum(map(self.log.draws, range(state.step, logged)))
        return DynamicSampler(self.size, max_prompts_per_step(self.context.config, self.size), logged, draw, self.total)

    async def _draw(self, draws: DynamicSampler) -> None:
        """Play draws as they may start, as many as it takes."""
        gate = self.context.gate

        def something_to_do() -> bool:
            return draws.batch == self.total or draws.may_start(gate.open_until)

        async with task_group() as playing:
            while True:
                await self.context.condition.wait_for(something_to_do)
                if draws.batch == self.total:
                    return
                batch = draws.latest_batch
                while gate.started <= batch:
                    self._drawn[self._begin(None).step] = {}
                playing.create_task(self._play_draw(draws, draws.start(), batch))

    async def _play_draw(self, draws: DynamicSampler, draw: int, batch: int) -> None:
        """Play one draw, in `batch` or one before, and give the learners all that are known to be theirs by it."""
        config = self.context.config
        task, size = self.tasks[task_for_sample(len(self.tasks), draw, config.seed)], config.rollout.num_generations
        self._waiting[draw] = played = await self.runner.run_episode(task, size, "train", draw, priority=batch)
        for placed in draws.played(draw, has_learning_signal(played, config)):
            episode, assembly = self._waiting.pop(placed.draw), self.assemblies[placed.batch]
            self._drawn[placed.batch][placed.draw] = episode, placed.informative
            if placed.informative:
                assembly.add_episode(placed.draw, episode)
            if placed.last:
                assembly.close()
        self.context.condition.notify_all()

    async def _log_drawn(self, draws: DynamicSampler) -> None:
        """Complete batches in their order."""
        for step in range(self.standing.logged, self.total):
            await self.context.condition.wait_for(partial(draws.is_complete, step))
            drawn = self._drawn.pop(step)
            skipped = tuple(draw for draw, (_, informative) in drawn.items() if not informative)
            await self._complete(step, [episode for episode, _ in drawn.values()], skipped)

    async def _relearn(self) -> None:
        """Bring the batches that are in the log already."""
        for step in range(self.standing.state.step, self.standing.logged):
            await self._take_from_log(step)

    async def _take_from_log(self, step: int) -> None:
        """A batch that was played before; not sooner than somebody needs it."""
        context = self.context
        await context.condition.wait_for(lambda: step <= min(context.gate.versions) + 1)
        self.logged[step] = rollout = await asyncio.to_thread(self.log.read, step, context.config.num_agents)
        self.assemblies[step] = builder_from_log(step, rollout.batches, context.config)
        context.condition.notify_all()
