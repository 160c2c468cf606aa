"""A step's end: its row, once every policy has learned, and its checkpoint, once every policy has saved."""

from __future__ import annotations

import asyncio

from marl_ray.actors.team import Team
from marl_ray.core.batch import UpdateStats
from marl_ray.core.ids import Policy
from marl_ray.core.tree import Episode
from marl_ray.runs.checkpoints import step_of
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.resume import Standing
from marl_ray.runs.rollouts import Coordination, Rollouts
from marl_ray.telemetry.records import record_of
from marl_ray.telemetry.rows import Row, evaluation_row, step_row
from marl_ray.telemetry.stream import RowStream
from marl_ray.weights.receiving import Delivery


class Ledger:
    """Of a run that goes on where `standing` says. It owns where the loop is (`state`), the last evaluation's row and
    episodes (`after`, `eval_episodes`), and what it was told of steps that not all policies have done."""

    def __init__(
        self,
        common: Coordination,
        rollouts: Rollouts,
        team: Team,
        folder: RunFolder,
        standing: Standing,
        rows: RowStream,
    ) -> None:
        self.common, self.rollouts, self.team, self.folder, self.rows = common, rollouts, team, folder, rows
        self.state = standing.state
        self.after: Row | None = None
        self.eval_episodes: list[Episode] = []
        self._updates: dict[int, dict[Policy, UpdateStats]] = {}
        """By step and policy."""
        self._deliveries: dict[int, dict[Policy, Delivery]] = {}
        """By the same, of publications; nothing was sent in those of weights that had not changed."""
        self._saved: set[tuple[int, Policy]] = set()
        """Step and policy of checkpoints not yet complete."""

    def learned(self, step: int, policy: Policy, stats: UpdateStats, delivery: Delivery | None) -> None:
        """The policy has done its update from batch `step`, and published its weights if there is a delivery."""
        self._updates.setdefault(step, {})[policy] = stats
        if delivery is not None:
            self._deliveries.setdefault(step, {})[policy] = delivery

    def saved(self, step: int, policy: Policy) -> None:
        """The policy's part of the checkpoint after `step` steps is on disk."""
        self._saved.add((step, policy))
        self.common.changes.tell()

    def has_checkpoint(self, step: int) -> bool:
        """Whether there is one after `step` steps."""
        return step % self.common.config.loop.save_steps == 0 or step == self.common.pipeline.total

    async def record(self) -> None:
        """A row of each step that all policies have done, and the checkpoints that all have saved."""
        while self.state.step < self.common.pipeline.total:
            await self._record_step(self.state.step)
            if self.has_checkpoint(self.state.step):
                await self._complete_checkpoint()

    async def _record_step(self, step: int) -> None:
        """Count it, and tell of it."""
        common, policies = self.common, self.common.config.policies
        await common.changes.until(lambda: len(self._updates.get(step, ())) == len(policies))
        done, rollout = self._updates.pop(step), self.rollouts.take(step)
        updates = {policy: done[policy] for policy in policies}
        learned = sum(stats.optimizer_steps for stats in updates.values())
        self.state = self.state.after(rollout.joint_samples, learned, rollout.draws)
        common.health.check_updates(list(updates.values()), self.state.step)
        deliveries, memory = self._deliveries.pop(step, {}), self.team.take_memory(step)
        row = step_row(self.state, rollout.row, updates, deliveries, common.timeline.row(step))
        self.rows.step(row | memory, rollout.episodes)
        common.changes.tell()

    async def _complete_checkpoint(self) -> None:
        """Make it visible, and forget the batches that all checkpoints cover: a learner may be on its way from one."""
        config = self.common.config
        parts = {(self.state.step, policy) for policy in config.policies}
        await self.common.changes.until(lambda: parts <= self._saved)
        self._saved -= parts
        await asyncio.to_thread(self.folder.commit, self.state, config.output.keep_checkpoints)
        if not config.output.keep_batches:
            self.rollouts.log.drop_before(step_of(self.folder.checkpoints.all()[0]))

    def evaluated(self, episodes: list[Episode], seconds: float) -> None:
        """The eval tasks were played with the weights of where the loop is."""
        config, step = self.common.config, self.state.step
        self.after, self.eval_episodes = evaluation_row(config, self.state, episodes, {"eval": seconds}), episodes
        name = "before" if step == 0 else "after" if step == self.common.pipeline.total else f"step {step}"
        kept = episodes[: config.output.episodes_per_step]
        self.rows.evaluation(self.after, name, [record_of(episode) for episode in kept])
