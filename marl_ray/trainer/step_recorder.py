"""Recording a step: its metrics once every policy has learned, and its checkpoint once every policy has saved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from marl_ray.actors.run_actors import RunActors
from marl_ray.core.batch import UpdateStats
from marl_ray.core.episode import Episode
from marl_ray.core.ids import PolicyId
from marl_ray.storage.checkpoints import checkpoint_step
from marl_ray.telemetry.metrics import MetricRow, episode_record, evaluation_row, step_row
from marl_ray.telemetry.sinks import MetricStream
from marl_ray.trainer.batch_producer import BatchProducer
from marl_ray.trainer.context import LoopContext
from marl_ray.weights.receiver import WeightSyncResult


class StepRecorder:
    """The progress of the loop: its state, the last evaluation, and results of steps that are not complete yet."""

    def __init__(self, context: LoopContext, producer: BatchProducer, actors: RunActors, metrics: MetricStream) -> None:
        self.context, self.producer, self.actors, self.metrics = context, producer, actors, metrics
        self.state = context.resume_state.state
        self.last_evaluation: MetricRow | None = None
        self.evaluation_episodes: list[Episode] = []
        self._updates: dict[int, dict[PolicyId, UpdateStats]] = {}
        """By step."""
        self._sync_results: dict[int, dict[PolicyId, WeightSyncResult]] = {}
        """By step, for policies that have updated their generators."""
        self._saved: set[tuple[int, PolicyId]] = set()
        """Step and policy of the parts of checkpoints that are not complete yet."""

    def learned(self, step: int, policy: PolicyId, stats: UpdateStats, sync_result: WeightSyncResult | None) -> None:
        """Keep the result of a policy's update from batch `step`, and of its weight update if there was one."""
        self._updates.setdefault(step, {})[policy] = stats
        if sync_result is not None:
            self._sync_results.setdefault(step, {})[policy] = sync_result

    def saved(self, step: int, policy: PolicyId) -> None:
        """Note that the policy's part of the checkpoint after `step` steps is on disk."""
        self._saved.add((step, policy))
        self.context.condition.notify_all()

    def has_checkpoint(self, step: int) -> bool:
        """Return whether there is a checkpoint after `step` steps."""
        return step % self.context.config.loop.save_steps == 0 or step == self.context.gate.total

    async def record(self) -> None:
        """Record each step that all policies have completed, and commit each checkpoint that all have saved."""
        while self.state.step < self.context.gate.total:
            await self._record_step(self.state.step)
            if self.has_checkpoint(self.state.step):
                await self._commit_checkpoint()

    async def _record_step(self, step: int) -> None:
        context, policies = self.context, self.context.config.policies
        await context.condition.wait_for(lambda: len(self._updates.get(step, ())) == len(policies))
        by_policy, rollout = self._updates.pop(step), self.producer.take(step)
        updates = {policy: by_policy[policy] for policy in policies}
        optimizer_steps = sum(stats.optimizer_steps for stats in updates.values())
        self.state = self.state.after(rollout.joint_samples, optimizer_steps, rollout.prompt_samples)
        context.health.check_updates(list(updates.values()), self.state.step)
        sync_results, memory = self._sync_results.pop(step, {}), self.actors.pop_memory_metrics(step)
        row = step_row(self.state, rollout.row, updates, sync_results, context.timeline.row(step))
        self.metrics.step(row | memory, rollout.episodes)
        self.write_spans()
        context.condition.notify_all()

    def write_spans(self) -> None:
        """Write the spans of the timeline that have ended since the last call."""
        self.metrics.spans(self.state.step, self.context.timeline.take_spans())

    async def _commit_checkpoint(self) -> None:
        """Make the checkpoint visible, and delete batches from the log that every kept checkpoint covers.

        Batches since the oldest kept checkpoint stay, because a learner may be recovering from it.
        """
        config, folder = self.context.config, self.context.folder
        parts = {(self.state.step, policy) for policy in config.policies}
        await self.context.condition.wait_for(lambda: parts <= self._saved)
        self._saved -= parts
        await asyncio.to_thread(folder.commit, self.state, config.output.keep_checkpoints)
        if not config.output.keep_batches:
            folder.log.drop_before(checkpoint_step(folder.checkpoints.all()[0]))

    def evaluated(self, episodes: list[Episode], measures: Mapping[str, float], seconds: float) -> None:
        """Record an evaluation at the current step, which took `seconds`, with its measures of cooperation."""
        config, step = self.context.config, self.state.step
        self.last_evaluation = evaluation_row(config, self.state, episodes, {"eval": seconds}, measures)
        self.evaluation_episodes = episodes
        name = "before" if step == 0 else "after" if step == self.context.gate.total else f"step {step}"
        kept = episodes[: config.output.episodes_per_step]
        self.metrics.evaluation(self.last_evaluation, name, [episode_record(episode) for episode in kept])
