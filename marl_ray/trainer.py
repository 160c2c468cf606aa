"""The loop, as coroutines that wait for facts and for nothing else.

    coroutine             does, for each of its steps            waits for
    --------------------  -------------------------------------  -------------------------------------------------
    rollouts              play episodes, log batches             the gate (`Pipeline`); engines, sandbox, the expert
    learn (one a policy)  update from the batch as its nodes     the batch in the log; its own gradient; no evaluation
                          come, publish, save                    that still needs its version
    record                a row of the step, a checkpoint        the slowest learner; the disk
    evaluate              play the eval tasks                    every agent at the evaluation's version; the row

With `max_staleness` 0 that is the synchronous loop: batch b is played when all have published version b. Whatever these
wait for on other machines has a deadline that names who was waited for: `resources.deadlines`, and those of requests to
an expert or a judge. A batch that the log has already, of a run that goes on, is not played: it is learned from again.
"""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.actors.learners import LearnerGroup
from marl_ray.actors.team import Team
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.tree import Episode
from marl_ray.core.waiting import Changes, now, together
from marl_ray.rollout.assembly import PolicyStream
from marl_ray.rollout.pipeline import Pipeline
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.check import Problem
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.health import Health
from marl_ray.runs.ledger import Ledger
from marl_ray.runs.preflight import probe_texts
from marl_ray.runs.resume import Standing
from marl_ray.runs.rollouts import Coordination, Rollouts
from marl_ray.telemetry.rows import Row
from marl_ray.telemetry.stream import RowStream
from marl_ray.telemetry.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Result:
    """Where a run ended and began, and the last evaluation that it made, if any."""

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
        self.config, self.problem, self.folder, self.team = config, problem, folder, team
        self.first, self.logged = standing.state.step, standing.logged
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
        self.ledger = Ledger(common, self.rollouts, team, folder, standing, rows)
        self.unsent = dict.fromkeys(config.policies, False)
        """Whether a policy's weights have changed since they were sent last."""

    async def run(self) -> Result:
        """Every step, with evaluations and checkpoints. Raises UserError."""
        await together(
            *self.rollouts.coroutines(),
            *map(self.learn, self.team.learners),
            self.ledger.record(),
            self.evaluate(),
        )
        done, state = self.ledger, self.ledger.state
        self.health.check_learning(state.learned, state.step)
        return Result(state.step, state.env_steps, self.first, done.after, done.eval_episodes)

    async def learn(self, learner: LearnerGroup) -> None:
        """All of one policy's updates, its parts of the checkpoints, and its trained model."""
        policy = learner.policy
        for step in range(self.first, self.total):
            await self.update_and_publish(learner, step)
            if self.ledger.has_checkpoint(step + 1):
                await learner.save(str(self.folder.checkpoints.begin(step + 1, policy)))
                self.ledger.saved(step + 1, policy)
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
        delivery = None
        if step + 1 >= self.logged - self.config.rollout.max_staleness or step + 1 in self.evaluations:
            delivery = await learner.publish(self.unsent[policy])
            self.unsent[policy] = False
        waited, done = stream.waited_s, now()
        self.timeline.learned(step, policy, learn=learned - begun - waited, wait=waited, sync=done - learned)
        self.ledger.learned(step, policy, stats, delivery)
        for agent in policy.agents:
            self.pipeline.published(agent, step + 1)
        self.changes.tell()

    async def evaluate(self) -> None:
        """All evaluations, each with exactly its versions."""
        for step in self.evaluations:
            await self.evaluate_at(step)

    async def evaluate_at(self, step: int) -> None:
        """Play the eval tasks and tell of it."""
        await self.changes.until(lambda: self.pipeline.evaluation == step == self.ledger.state.step)
        self.timeline.play()
        episodes = await self.player.evaluate(self.eval_tasks)
        seconds = self.timeline.played()
        if self.config.rollout.max_staleness == 0:
            self.team.sandbox.take_executions()  # a step's are its own
        self.ledger.evaluated(episodes, seconds)
        self.pipeline.evaluated(step)
        self.changes.tell()
