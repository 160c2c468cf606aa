"""A step's end: its row, once every policy has learned, and its checkpoint, once every policy has saved."""

from __future__ import annotations

import asyncio

from marl_ray.actors.run_actors import RunActors
from marl_ray.core.batch import UpdateStats
from marl_ray.core.episode import Episode
from marl_ray.core.ids import PolicyId
from marl_ray.storage.checkpoints import step_of
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import MetricRow, evaluation_row, step_row
from marl_ray.telemetry.sinks import MetricStream
from marl_ray.trainer.batch_producer import BatchProducer, LoopContext
from marl_ray.weights.receiver import WeightSyncResult


class StepRecorder:
    """Of a run that goes on where `standing` says. It owns where the loop is (`state`), the last evaluation's row and
    episodes (`after`, `eval_episodes`), and what it was told of steps that not all policies have done."""

    def __init__(
        self,
        context: LoopContext,
        producer: BatchProducer,
        team: RunActors,
        folder: RunFolder,
        standing: ResumeState,
        rows: MetricStream,
    ) -> None:
        self.context, self.producer, self.team, self.folder, self.rows = context, producer, team, folder, rows
        self.state = standing.state
        self.after: MetricRow | None = None
        self.eval_episodes: list[Episode] = []
        self._updates: dict[int, dict[PolicyId, UpdateStats]] = {}
        """By step and policy."""
        self._deliveries: dict[int, dict[PolicyId, WeightSyncResult]] = {}
        """By the same, of publications; nothing was sent in those of weights that had not changed."""
        self._saved: set[tuple[int, PolicyId]] = set()
        """Step and policy of checkpoints not yet complete."""

    def learned(self, step: int, policy: PolicyId, stats: UpdateStats, delivery: WeightSyncResult | None) -> None:
        """The policy has done its update from batch `step`, and published its weights if there is a delivery."""
        self._updates.setdefault(step, {})[policy] = stats
        if delivery is not None:
            self._deliveries.setdefault(step, {})[policy] = delivery

    def saved(self, step: int, policy: PolicyId) -> None:
        """The policy's part of the checkpoint after `step` steps is on disk."""
        self._saved.add((step, policy))
        self.context.condition.notify_all()

    def has_checkpoint(self, step: int) -> bool:
        """Whether there is one after `step` steps."""
        return step % self.context.config.loop.save_steps == 0 or step == self.context.gate.total

    async def record(self) -> None:
        """A row of each step that all policies have done, and the checkpoints that all have saved."""
        while self.state.step < self.context.gate.total:
            await self._record_step(self.state.step)
            if self.has_checkpoint(self.state.step):
                await self._complete_checkpoint()

    async def _record_step(self, step: int) -> None:
        """Count it, and tell of it."""
        context, policies = self.context, self.context.config.policies
        await context.condition.wait_for(lambda: len(self._updates.get(step, ())) == len(policies))
        done, rollout = self._updates.pop(step), self.producer.take(step)
        updates = {policy: done[policy] for policy in policies}
        learned = sum(stats.optimizer_steps for stats in updates.values())
        self.state = self.state.after(rollout.joint_samples, learned, rollout.draws)
        context.health.check_updates(list(updates.values()), self.state.step)
        deliveries, memory = self._deliveries.pop(step, {}), self.team.pop_memory_metrics(step)
        row = step_row(self.state, rollout.row, updates, deliveries, context.timeline.row(step))
        self.rows.step(row | memory, rollout.episodes)
        context.condition.notify_all()

    async def _complete_checkpoint(self) -> None:
        """Make it visible, and forget the batches that all checkpoints cover: a learner may be on its way from one."""
        config = self.context.config
        parts = {(self.state.step, policy) for policy in config.policies}
        await self.context.condition.wait_for(lambda: parts <= self._saved)
        self._saved -= parts
        await asyncio.to_thread(self.folder.commit, self.state, config.output.keep_checkpoints)
        if not config.output.keep_batches:
            self.producer.log.drop_before(step_of(self.folder.checkpoints.all()[0]))

    def evaluated(self, episodes: list[Episode], seconds: float) -> None:
        """The eval tasks were played with the weights of where the loop is."""
        config, step = self.context.config, self.state.step
        self.after, self.eval_episodes = evaluation_row(config, self.state, episodes, {"eval": seconds}), episodes
        name = "before" if step == 0 else "after" if step == self.context.gate.total else f"step {step}"
        kept = episodes[: config.output.episodes_per_step]
        self.rows.evaluation(self.after, name, [episode_record(episode) for episode in kept])
