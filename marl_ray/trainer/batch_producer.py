"""Producing the batches of a run: rolling them out, or reading them from the batch log of a resumed run.

Without dynamic sampling a batch consists of the tasks of one step, and at most max_staleness + 1 batches are rolled out
at the same time. With dynamic sampling episodes start one by one, and `DynamicSampler` decides when an episode may
start and which batch it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from marl_ray.actors.sandbox_pool import SandboxPool
from marl_ray.config.budget import max_prompts_per_step
from marl_ray.core.batch import GroupQueue
from marl_ray.core.concurrency import task_group
from marl_ray.core.episode import Episode
from marl_ray.core.ids import PolicyId
from marl_ray.credit.groups import has_learning_signal
from marl_ray.data.sampling import TaskOrder
from marl_ray.rollout.player import Player
from marl_ray.rollout.step_measures import StepMeasures
from marl_ray.storage.batch_log import LoggedStep
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import joint_samples, rollout_row
from marl_ray.trainer.batch_builder import BatchBuilder, policy_batch, put_logged_groups
from marl_ray.trainer.batch_scheduling import DynamicSampler
from marl_ray.trainer.context import LoopContext, RunInputs


@dataclass(slots=True)
class _SampledEpisodes:
    """All episodes of a dynamically sampled batch in the order of their samples, and the skipped samples."""

    episodes: list[Episode] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


class BatchProducer:
    """Puts every batch of a run on the queues of the policies, from the resume state to the last step."""

    def __init__(self, context: LoopContext, inputs: RunInputs, player: Player, sandbox: SandboxPool) -> None:
        self.context = context
        self.player = player
        self.sandbox = sandbox
        self.measures = StepMeasures(context.config, inputs.environment, sandbox)
        self.tasks = TaskOrder(inputs.train_tasks, context.config.dataset.sampler, context.config.seed)
        self.resume_state = context.resume_state
        self.log = context.folder.log
        self.total = context.gate.total
        self.size = min(context.config.training.rollout_buffer_size, len(inputs.train_tasks))
        """Episodes that a step learns from; the last step of an epoch may have fewer."""
        self._queues: dict[int, dict[PolicyId, GroupQueue]] = {}
        """By step, until the step is recorded."""
        self._builders: dict[int, BatchBuilder] = {}
        """By step, until the batch is in the log."""
        self._logged: dict[int, LoggedStep] = {}
        """Batches in the log that are not recorded yet, by step."""
        self._unassigned: dict[int, Episode] = {}
        """With dynamic sampling: finished episodes whose batch is not known yet, by sample."""
        self._sampled: dict[int, _SampledEpisodes] = {}
        """With dynamic sampling: episodes that are not in the log yet, by step."""

    def queue(self, step: int, policy: PolicyId) -> GroupQueue:
        """Return the queue of one policy's batch, which may be empty so far."""
        return self._queues_of(step)[policy]

    def _queues_of(self, step: int) -> dict[PolicyId, GroupQueue]:
        if step not in self._queues:
            self._queues[step] = {policy: GroupQueue(step) for policy in self.context.config.policies}
        return self._queues[step]

    def take(self, step: int) -> LoggedStep:
        """Return a batch that all policies have learned from, and drop it here."""
        del self._queues[step]
        return self._logged.pop(step)

    def release_batches(self) -> None:
        """Close the queue of every batch that its policy may learn from now, and wake the tasks that wait for the gate.

        To be called whenever the gate has changed.
        """
        gate = self.context.gate
        for policy in self.context.config.policies:
            step = gate.versions[policy.first_agent]
            # The gate may be ahead of `_logged`, which a resumed run fills from the log step by step.
            if not gate.may_update(policy.first_agent) or step not in self._logged:
                continue
            queue = self.queue(step, policy)
            if not queue.closed:
                queue.close(policy_batch(self._logged[step].batches, policy))
        self.context.condition.notify_all()

    def coroutines(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that produce all batches, each as soon as the gate permits."""
        if self.context.config.training.dynamic_sampling:
            sampler = self._sampler()
            return [self._read_log(), self._sample_episodes(sampler), self._log_sampled(sampler)]
        # With staleness bound k, batch b + k + 1 waits for batch b anyway: at most k + 1 batches are open.
        lanes = min(self.context.config.training.max_staleness, self.total) + 1
        return [self._roll_out_lane(lane, lanes) for lane in range(lanes)]

    async def _roll_out_lane(self, lane: int, lanes: int) -> None:
        """Roll out every `lanes`-th batch. The first lane reads the batches of the log first."""
        if lane == 0:
            await self._read_log()
        for step in range(self.resume_state.logged + lane, self.total, lanes):
            await self.context.condition.wait_for(lambda b: self.context.gate.next_batch == b, step)
            await self.roll_out(step)

    async def roll_out(self, step: int) -> None:
        """Roll out one batch and write it to the log."""
        config = self.context.config
        tasks = self.tasks.for_step(step, config.training.rollout_buffer_size)
        builder = self._start_batch(len(tasks))
        episodes = await self.player.run_batch(tasks, step, builder)
        await self._complete(step, episodes)

    def _start_batch(self, episodes: int | None) -> BatchBuilder:
        """Start the next batch; `episodes` as in `BatchBuilder`."""
        context = self.context
        step = context.gate.start()
        context.timeline.start_rollout(step)
        builder = BatchBuilder(step, episodes, context.config, self._queues_of(step))
        self._builders[step] = builder
        context.condition.notify_all()
        return builder

    async def _complete(self, step: int, episodes: list[Episode], skipped: tuple[int, ...] = ()) -> None:
        """Check a finished batch, write it to the log and release it. `skipped`: see `LoggedStep`."""
        context = self.context
        config = context.config
        measures = await self.measures.measure(episodes)
        seconds = context.timeline.finish_rollout(step, is_last=step == self.total - 1)
        executions = self.sandbox.take_executions()
        context.health.check_rollout(episodes, step)
        batches = self._builders.pop(step).batches
        row = rollout_row(config.training, config.external, episodes, batches, seconds, executions) | measures
        samples = 0  # otherwise the step tells the number of prompt samples
        if config.training.dynamic_sampling:
            samples = len(episodes)
            row["rollout/skipped"] = len(skipped)
            is_resumed = self.resume_state.logged > 0
            context.health.check_samples(step, samples, samples - len(skipped), self.size, is_resumed)
        written_episodes = episodes[: config.output.episodes_per_step]
        records = tuple(map(episode_record, written_episodes))
        logged = LoggedStep(step, tuple(batches), joint_samples(episodes), row, records, samples, skipped)
        # Lanes finish in any order; the log has the batches in theirs.
        await context.condition.wait_for(lambda: context.gate.in_log == step)
        # Every batch is in the log before its optimizer step.
        await asyncio.to_thread(self.log.append, logged)
        self._logged[step] = logged
        context.gate.logged(step)
        self.release_batches()

    def _sampler(self) -> DynamicSampler:
        """Return the sampler at the end of the log."""
        state = self.resume_state.state
        logged = self.resume_state.logged
        logged_samples = sum(map(self.log.prompt_samples, range(state.step, logged)))
        first_sample = state.prompt_samples + logged_samples
        limit = max_prompts_per_step(self.context.config.training, self.size)
        return DynamicSampler(self.size, limit, logged, first_sample, self.total)

    async def _sample_episodes(self, sampler: DynamicSampler) -> None:
        """Start episodes as the sampler and the gate permit, until all batches are complete."""
        gate = self.context.gate

        def can_proceed() -> bool:
            return sampler.batch == self.total or sampler.may_start(gate.open_until)

        async with task_group() as running:
            while True:
                await self.context.condition.wait_for(can_proceed)
                if sampler.batch == self.total:
                    return
                # The sample may belong to any batch up to this one, so all of them have builders before it ends.
                batch = sampler.latest_batch
                while gate.started <= batch:
                    builder = self._start_batch(None)
                    self._sampled[builder.step] = _SampledEpisodes()
                sample = sampler.start()
                running.create_task(self._sample_episode(sampler, sample, batch))

    async def _sample_episode(self, sampler: DynamicSampler, sample: int, batch: int) -> None:
        """Roll out one episode, which belongs to `batch` or an earlier batch, and add all episodes whose batch is known
        as a result."""
        config = self.context.config
        task = self.tasks.for_sample(sample)
        episode = await self.player.run_episode(task, config.training.group_sizes, "train", sample, priority=batch)
        self._unassigned[sample] = episode
        for assignment in sampler.finished(sample, has_learning_signal(episode, config)):
            assigned_episode = self._unassigned.pop(assignment.sample)
            builder = self._builders[assignment.batch]
            sampled = self._sampled[assignment.batch]
            sampled.episodes.append(assigned_episode)
            if assignment.informative:
                builder.add_episode(assignment.sample, assigned_episode)
            else:
                sampled.skipped.append(assignment.sample)
            if assignment.last:
                builder.close()
        self.context.condition.notify_all()

    async def _log_sampled(self, sampler: DynamicSampler) -> None:
        """Complete dynamically sampled batches in their order."""
        for step in range(self.resume_state.logged, self.total):
            await self.context.condition.wait_for(lambda b: b < sampler.batch, step)
            sampled = self._sampled.pop(step)
            await self._complete(step, sampled.episodes, tuple(sampled.skipped))

    async def _read_log(self) -> None:
        """Read the batches that are in the log already, each at most one step before a policy needs it."""
        context = self.context
        for step in range(self.resume_state.state.step, self.resume_state.logged):
            # A batch may be large, and memory need not hold the whole log.
            await context.condition.wait_for(lambda b: b <= min(context.gate.versions) + 1, step)
            logged = await asyncio.to_thread(self.log.read, step, context.config.num_agents)
            self._logged[step] = logged
            put_logged_groups(logged.batches, self._queues_of(step), context.config.training)
            self.release_batches()
