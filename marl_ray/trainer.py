"""The loop, as coroutines that wait for facts and for nothing else.

    coroutine             does, for each of its steps            waits for
    --------------------  -------------------------------------  -------------------------------------------------
    roll_out (k + 1)      play a batch's episodes, log it        the gate (`Pipeline`); engines, sandbox, the expert
    learn (one an agent)  update from the batch as its nodes     the batch in the log; its own gradient; no evaluation
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
from pathlib import Path
from time import monotonic

from marl_ray.actors.learners import LearnerGroup
from marl_ray.actors.team import Team
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.batch import UpdateStats
from marl_ray.core.streams import draw_tasks
from marl_ray.core.tree import Episode
from marl_ray.core.waiting import Changes, together
from marl_ray.rollout.assembly import AgentStream, Assembly, assembled
from marl_ray.rollout.pipeline import Pipeline
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.batch_log import LoggedStep
from marl_ray.runs.check import Problem
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.health import Health
from marl_ray.runs.preflight import probe_texts
from marl_ray.runs.resume import Standing
from marl_ray.telemetry.records import record_of
from marl_ray.telemetry.rows import Row, evaluation_row, joint_samples, rollout_row, step_row
from marl_ray.telemetry.stream import RowStream
from marl_ray.telemetry.timeline import Timeline


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
        self.evaluations = [] if not problem.eval_tasks else standing.evaluations(config, self.total)
        k = config.rollout.max_staleness
        self.pipeline = Pipeline(config.num_agents, k, self.first, self.total, self.evaluations, self.logged)
        self.changes = Changes()
        self.health, self.timeline = Health(config), Timeline(config.num_agents)
        self.player = EpisodePlayer(config, problem.environment, problem.transition, team.generators, team.sandbox)
        self.assemblies: dict[int, Assembly] = {}
        """Batches that are played, or not yet learned from by all, by step."""
        self.rollouts: dict[int, LoggedStep] = {}
        """Those that are complete and not yet recorded."""
        self.updates: dict[int, dict[int, UpdateStats]] = {}
        """By step and agent, of steps not yet recorded."""
        self.saved: set[tuple[int, int]] = set()
        """Step and agent of checkpoints not yet complete."""
        self.after: Row | None = None
        self.eval_episodes: list[Episode] = []

    async def run(self) -> Result:
        """Every step, with evaluations and checkpoints. Raises UserError."""
        lanes = self.config.rollout.max_staleness + 1  # batch b + k + 1 cannot start before batch b is complete
        await together(
            *(self.roll_out(lane, lanes) for lane in range(lanes)),
            *map(self.learn, self.team.learners),
            self.record(),
            self.evaluate(),
        )
        self.health.check_learning(self.state.learned, self.state.step)
        return Result(self.state.step, self.state.env_steps, self.first, self.after, self.eval_episodes)

    async def roll_out(self, lane: int, lanes: int) -> None:
        """Play every `lanes`-th batch as soon as it may start."""
        if lane == 0:
            for step in range(self.first, self.logged):
                await self.changes.until(lambda step=step: step <= min(self.pipeline.versions) + 1)  # not all at once
                self.take(await asyncio.to_thread(self.folder.log.read, step))
        for step in range(self.logged + lane, self.total, lanes):
            await self.changes.until(lambda step=step: self.pipeline.next_batch == step)
            self.pipeline.start()
            self.timeline.play(step)
            tasks = self.problem.train_tasks
            drawn = draw_tasks(len(tasks), self.config.rollout.rollout_buffer_size, step, self.config.seed)
            self.assemblies[step] = assembly = Assembly(step, len(drawn), self.config, self.changes.tell)
            self.changes.tell()
            episodes = await self.player.rollout([tasks[i] for i in drawn], step, assembly)
            seconds, executions = self.timeline.played(step), self.team.sandbox.take_executions()
            self.health.check_rollout(episodes, step)
            rollout = LoggedStep(
                step=step,
                batches=tuple(assembly.batches),
                joint_samples=joint_samples(episodes),
                row=rollout_row(self.config, episodes, assembly.batches, seconds, executions),
                episodes=tuple(map(record_of, episodes[: self.config.output.episodes_per_step])),
            )
            await self.changes.until(lambda step=step: self.pipeline.in_log == step)
            await asyncio.to_thread(self.folder.log.append, rollout)
            self.rollouts[step] = rollout
            self.pipeline.logged(step)
            self.changes.tell()

    def take(self, rollout: LoggedStep) -> None:
        """A batch of the log, as if it had just been played."""
        self.assemblies[rollout.step] = assembled(rollout.step, rollout.batches, self.config)
        self.rollouts[rollout.step] = rollout
        self.changes.tell()

    async def learn(self, learner: LearnerGroup) -> None:
        """One agent's updates, each as soon as it may be made and has something to learn from.

        Weights that did not change are not sent: the generators serve what they have under the next version. Nor are
        those of logged steps that nothing is going to be played with.
        """
        agent, every, unsent = learner.agent, self.config.loop.save_steps, False
        for step in range(self.first, self.total):
            begun = monotonic()
            await self.changes.until(lambda step=step: step in self.assemblies)
            stream = AgentStream(
                self.assemblies[step], agent, self.changes.until, lambda: self.pipeline.may_update(agent)
            )
            stream.waited_s = monotonic() - begun
            stats = await learner.learn(stream)
            learned = monotonic()
            unsent |= stats.optimizer_steps > 0
            if step + 1 >= self.logged - self.config.rollout.max_staleness or step + 1 in self.evaluations:
                await learner.publish(unsent)
                unsent = False
            done = monotonic()
            self.timeline.learned(step, agent, learned - begun - stream.waited_s, stream.waited_s, done - learned)
            self.pipeline.published(agent, step + 1)
            self.updates.setdefault(step, {})[agent] = stats
            self.changes.tell()
            if (step + 1) % every == 0 or step + 1 == self.total:
                await learner.save(str(self.folder.checkpoints.begin(step + 1, agent)))
                self.saved.add((step + 1, agent))
                self.changes.tell()
        if self.config.output.save_final_model:
            texts = probe_texts(self.problem.environment, self.problem.train_tasks, agent)
            await learner.export(str(self.folder.model(agent)), texts)

    async def record(self) -> None:
        """Count each step that all agents have done, tell of it, and make a checkpoint visible that all have saved."""
        agents, keep = range(self.config.num_agents), self.config.output.keep_checkpoints
        for step in range(self.first, self.total):
            await self.changes.until(lambda step=step: len(self.updates.get(step, ())) == len(agents))
            of_agent, rollout = self.updates.pop(step), self.rollouts.pop(step)
            del self.assemblies[step]
            updates = [of_agent[agent] for agent in agents]
            self.state = self.state.after(rollout.joint_samples, sum(stats.optimizer_steps for stats in updates))
            self.health.check_updates(updates, self.state.step)
            self.rows.step(step_row(self.state, rollout.row, updates, self.timeline.row(step)), rollout.episodes)
            self.changes.tell()
            if self.state.step % self.config.loop.save_steps == 0 or self.state.step == self.total:
                parts = {(self.state.step, agent) for agent in agents}
                await self.changes.until(lambda parts=parts: parts <= self.saved)
                self.folder.checkpoints.commit(self.state, keep)
                self.saved -= parts
                if not self.config.output.keep_batches:
                    self.folder.log.drop_before(self.state.step)

    async def evaluate(self) -> None:
        """Play the eval tasks at each step that is due, with exactly its versions, and tell of it."""
        tasks = self.problem.eval_tasks[: self.config.evaluation.eval_num_samples]
        for step in self.evaluations:
            await self.changes.until(lambda step=step: self.pipeline.evaluation == step == self.state.step)
            begun = monotonic()
            self.timeline.play()
            self.eval_episodes = await self.player.evaluate(tasks)
            self.timeline.played()
            if self.config.rollout.max_staleness == 0:
                self.team.sandbox.take_executions()  # a step's are its own
            self.after = evaluation_row(self.config, self.state, self.eval_episodes, monotonic() - begun)
            name = "before" if step == 0 else "after" if step == self.total else f"step {step}"
            kept = self.eval_episodes[: self.config.output.episodes_per_step]
            self.rows.evaluation(self.after, name, [record_of(episode) for episode in kept])
            self.pipeline.evaluated(step)
            self.changes.tell()
