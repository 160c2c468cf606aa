"""Recording a step: its metrics once every policy has learned."""

from __future__ import annotations

from collections.abc import Mapping

from marl_ray.actors.run_actors import RunActors
from marl_ray.core.batch import GroupQueue, UpdateStats
from marl_ray.core.episode import Episode
from marl_ray.core.ids import PolicyId
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import MetricRow, evaluation_row, step_row
from marl_ray.telemetry.sinks import MetricStream
from marl_ray.trainer.batch_producer import BatchProducer
from marl_ray.trainer.checkpoint_saver import CheckpointSaver
from marl_ray.trainer.context import LoopContext
from marl_ray.weights.receiver import WeightSyncResult


class StepRecorder:
    """The progress of the loop: its state, the last evaluation, and results of steps that are not complete yet."""

    def __init__(
        self,
        context: LoopContext,
        producer: BatchProducer,
        actors: RunActors,
        saver: CheckpointSaver,
        metrics: MetricStream,
    ) -> None:
        self.context = context
        self.producer = producer
        self.actors = actors
        self.saver = saver
        self.metrics = metrics
        self.state = context.resume_state.state
        self.last_evaluation: MetricRow | None = None
        self.evaluation_episodes: list[Episode] = []
        self._updates: dict[int, dict[PolicyId, UpdateStats]] = {}
        """By step."""
        self._sync_results: dict[int, dict[PolicyId, WeightSyncResult]] = {}
        """By step, for policies that have updated their generators."""
        self._waiting: dict[int, dict[PolicyId, int]] = {}
        """By step: most groups that waited for a policy."""

    def learned(
        self, queue: GroupQueue, policy: PolicyId, stats: UpdateStats, sync_result: WeightSyncResult | None
    ) -> None:
        """Keep the result of a policy's update from the batch of `queue`, and of its weight update if there was one."""
        step = queue.step
        self._updates.setdefault(step, {})[policy] = stats
        self._waiting.setdefault(step, {})[policy] = queue.most_waiting
        if sync_result is not None:
            self._sync_results.setdefault(step, {})[policy] = sync_result

    async def record(self) -> None:
        """Record each step that all policies have completed."""
        while self.state.step < self.context.gate.total:
            await self._record_step(self.state.step)

    async def _record_step(self, step: int) -> None:
        context = self.context
        policies = context.config.policies
        await context.condition.wait_for(lambda: len(self._updates.get(step, ())) == len(policies))
        finished_updates = self._updates.pop(step)
        # Policies finish in any order; the row and its sums have them in the order of the config.
        updates = {policy: finished_updates[policy] for policy in policies}
        rollout = self.producer.take(step)  # after the last learner has read its batch
        optimizer_steps = sum(stats.optimizer_steps for stats in updates.values())
        self.state = self.state.after(rollout.joint_samples, optimizer_steps, rollout.prompt_samples)
        context.health.check_updates(list(updates.values()), self.state.step)
        sync_results = self._sync_results.pop(step, {})
        row = step_row(self.state, rollout.row, updates, sync_results, context.timeline.row(step))
        row |= self.actors.pop_memory_metrics(step)
        row |= self.actors.take_queue_metrics()
        waiting = self._waiting.pop(step)
        for policy in policies:
            row[f"{policy.key}/groups_waiting_max"] = waiting[policy]
        self.metrics.step(row, rollout.episodes)
        self.write_spans()
        # After the row is written: a checkpoint must not precede the metrics of its step.
        self.saver.recorded(self.state)
        context.condition.notify_all()

    def write_spans(self) -> None:
        """Write the spans of the timeline that have ended since the last call."""
        self.metrics.spans(self.state.step, self.context.timeline.take_spans())

    def evaluated(self, episodes: list[Episode], measures: Mapping[str, float], seconds: float) -> None:
        """Record an evaluation at the current step, which took `seconds`, with its measures of cooperation."""
        config = self.context.config
        step = self.state.step
        self.last_evaluation = evaluation_row(
            config.training, config.external, self.state, episodes, {"eval": seconds}, measures
        )
        self.evaluation_episodes = episodes
        if step == 0:
            name = "before"
        elif step == self.context.gate.total:
            name = "after"
        else:
            name = f"step {step}"
        written_episodes = episodes[: config.output.episodes_per_step]
        records = list(map(episode_record, written_episodes))
        self.metrics.evaluation(self.last_evaluation, name, records)
