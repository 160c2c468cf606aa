"""The loop, as coroutines that wait for facts and for nothing else.

    coroutine             does, for each of its steps            waits for
    --------------------  -------------------------------------  -------------------------------------------------
    rollouts (k + 1)      play a batch's episodes, log it        the gate (`Pipeline`); engines, sandbox, the expert
    learn (one a policy)  update from the batch as its nodes     the batch in the log; its own gradient; no evaluation
                          come, publish, save                    that still needs its version
    record                a row of the step, a checkpoint        the slowest learner; the disk
    evaluate              play the eval tasks                    every agent at the evaluation's version

With `max_staleness` 0 that is the synchronous loop: batch b is played when all have published version b. Whatever these
wait for on other machines has a deadline (`resources.deadlines`) that names who was waited for. A batch that is in the
log already, of a run that goes on, is not played: it is learned from again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from marl_ray.actors.learners import LearnerGroup
from marl_ray.actors.team import Team
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.batch import UpdateStats
from marl_ray.core.ids import Policy
from marl_ray.core.tree import Episode
from marl_ray.core.waiting import Changes, now, together
from marl_ray.rollout.assembly import PolicyStream
from marl_ray.rollout.pipeline import Pipeline
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.check import Problem
from marl_ray.runs.checkpoints import step_of
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.health import Health
from marl_ray.runs.preflight import probe_texts
from marl_ray.runs.resume import Standing
from marl_ray.runs.rollouts import Coordination, Rollouts
from marl_ray.telemetry.records import record_of
from marl_ray.telemetry.rows import Row, evaluation_row, step_row
from marl_ray.telemetry.stream import RowStream
from marl_ray.telemetry.timeline import Timeline
from marl_ray.weights.receiving import Delivery


@dataclass(frozen=True, slots=True)
class Result:
    """Where a run ended and began, and its last evaluation; without eval tasks there is none."""

    step: int
    env_steps: int
    first_step: int
    after: Row | None
    eval_episodes: list[Episode]


class Trainer:
    """One run on a team whose generators have their first weights, from `standing` to its last checkpoint."""

    def __init__(
        self, config: Config, problem: Problem, folder: RunFolder, standing: Standing, team: Team, rows: RowStream
    ) -> None:
        self.config, self.problem, self.folder, self.team, self.rows = config, problem, folder, team, rows
        self.state, self.first, self.logged = standing.state, standing.state.step, standing.logged
        self.total = arithmetic(config, len(problem.train_tasks)).total_steps
        self.eval_tasks = problem.eval_tasks[: config.evaluation.eval_num_samples]
        self.evaluations = standing.evaluations(config, self.total) if self.eval_tasks else []
        k = config.rollout.max_staleness
        self.pipeline = Pipeline(config.num_agents, k, self.first, self.total, self.evaluations, self.logged)
        self.changes = Changes()
        self.health, self.timeline = Health(config), Timeline(config.policies)
        self.player = EpisodePlayer(config, problem.environment, problem.transition, team.generators, team.sandbox)
        common = Coordination(config, self.pipeline, self.changes, self.health, self.timeline)
        self.rollouts = Rollouts(common, problem.train_tasks, self.player, team.sandbox, standing, folder.log)
        self.updates: dict[int, dict[Policy, UpdateStats]] = {}
        """By step and policy, of steps not yet recorded."""
        self.deliveries: dict[int, dict[Policy, Delivery]] = {}
        """By the same, of weights that were sent."""
        self.unsent = dict.fromkeys(config.policies, False)
        """Whether a policy's weights have changed since they were sent last."""
        self.saved: set[tuple[int, Policy]] = set()
        """Step and policy of checkpoints not yet complete."""
        self.after: Row | None = None
        self.eval_episodes: list[Episode] = []

    async def run(self) -> Result:
        """Every step, with evaluations and checkpoints. Raises UserError."""
        await together(
            *self.rollouts.coroutines(),
            *map(self.learn, self.team.learners),
            self.record(),
            self.evaluate(),
        )
        self.health.check_learning(self.state.learned, self.state.step)
        return Result(self.state.step, self.state.env_steps, self.first, self.after, self.eval_episodes)

    async def learn(self, learner: LearnerGroup) -> None:
        """All of one policy's updates, its parts of the checkpoints, and its trained model."""
        every, policy = self.config.loop.save_steps, learner.policy
        for step in range(self.first, self.total):
            await self.update_and_publish(learner, step)
            if (step + 1) % every == 0 or step + 1 == self.total:
                await learner.save(str(self.folder.checkpoints.begin(step + 1, policy)))
                self.saved.add((step + 1, policy))
                self.changes.tell()
        if self.config.output.save_final_model:
            environment, tasks = self.problem.environment, self.problem.train_tasks
            texts = [text for agent in policy.agents for text in probe_texts(environment, tasks, agent)]
            await learner.export(str(self.folder.model(policy)), texts)

    async def update_and_publish(self, learner: LearnerGroup, step: int) -> None:
        """One policy's update from batch `step`, then its weights to its own generators, as version `step` + 1.

        Weights that did not change are not sent: the generators serve what they have under the next version. Nor are
        those that nothing will be played with, on the way through the log.
        """
        policy, begun = learner.policy, now()
        self.timeline.learn(policy)
        await self.changes.until(lambda: step in self.rollouts.assemblies)
        assembly, may_update = self.rollouts.assemblies[step], self.pipeline.may_update
        stream = PolicyStream(assembly, policy, self.changes.until, may_update, now() - begun)
        stats = await learner.learn(stream)
        learned = now()
        self.unsent[policy] |= stats.optimizer_steps > 0
        if step + 1 >= self.logged - self.config.rollout.max_staleness or step + 1 in self.evaluations:
            delivery = await learner.publish(self.unsent[policy])
            if delivery is not None:
                self.deliveries.setdefault(step, {})[policy] = delivery
            self.unsent[policy] = False
        waited, done = stream.waited_s, now()
        self.timeline.learned(step, policy, learn=learned - begun - waited, wait=waited, sync=done - learned)
        self.updates.setdefault(step, {})[policy] = stats
        for agent in policy.agents:
            self.pipeline.published(agent, step + 1)
        self.changes.tell()

    async def record(self) -> None:
        """A row of each step that all policies have done, and the checkpoints that all have saved."""
        for step in range(self.first, self.total):
            await self.record_step(step)
            if self.state.step % self.config.loop.save_steps == 0 or self.state.step == self.total:
                await self.complete_checkpoint()

    async def record_step(self, step: int) -> None:
        """Count it, and tell of it."""
        policies = self.config.policies
        await self.changes.until(lambda: len(self.updates.get(step, ())) == len(policies))
        done, rollout = self.updates.pop(step), self.rollouts.logged.pop(step)
        del self.rollouts.assemblies[step]
        updates = {policy: done[policy] for policy in policies}
        learned = sum(stats.optimizer_steps for stats in updates.values())
        self.state = self.state.after(rollout.joint_samples, learned, rollout.draws)
        self.health.check_updates(list(updates.values()), self.state.step)
        deliveries, memory = self.deliveries.pop(step, {}), self.team.take_memory(step)
        row = step_row(self.state, rollout.row, updates, deliveries, self.timeline.row(step))
        self.rows.step(row | memory, rollout.episodes)
        self.changes.tell()

    async def complete_checkpoint(self) -> None:
        """Make it visible, and forget the batches that all checkpoints cover: a learner may be on its way from one."""
        parts = {(self.state.step, policy) for policy in self.config.policies}
        await self.changes.until(lambda: parts <= self.saved)
        self.saved -= parts
        await asyncio.to_thread(self.folder.checkpoints.commit, self.state, self.config.output.keep_checkpoints)
        if not self.config.output.keep_batches:
            self.rollouts.log.drop_before(step_of(self.folder.checkpoints.all()[0]))

    async def evaluate(self) -> None:
        """All evaluations, each with exactly its versions."""
        for step in self.evaluations:
            await self.evaluate_at(step)

    async def evaluate_at(self, step: int) -> None:
        """Play the eval tasks and tell of it."""
        await self.changes.until(lambda: self.pipeline.evaluation == step == self.state.step)
        self.timeline.play()
        self.eval_episodes = await self.player.evaluate(self.eval_tasks)
        seconds = self.timeline.played()
        if self.config.rollout.max_staleness == 0:
            self.team.sandbox.take_executions()  # a step's are its own
        self.after = evaluation_row(self.config, self.state, self.eval_episodes, {"eval": seconds})
        name = "before" if step == 0 else "after" if step == self.total else f"step {step}"
        kept = self.eval_episodes[: self.config.output.episodes_per_step]
        self.rows.evaluation(self.after, name, [record_of(episode) for episode in kept])
        self.pipeline.evaluated(step)
        self.changes.tell()
