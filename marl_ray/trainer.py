"""The loop, as coroutines that wait for facts and for nothing else.

    coroutine             does, for each of its steps            waits for
    --------------------  -------------------------------------  -------------------------------------------------
    roll_out (k + 1)      play a batch's episodes, log it        the gate (`Pipeline`); engines, sandbox, the expert
    draw, log_drawn       the same with dynamic_sampling         the gate (`Draws`); the same
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
from functools import partial

from marl_ray.actors.learners import LearnerGroup
from marl_ray.actors.team import Team
from marl_ray.config.arithmetic import arithmetic, most_draws
from marl_ray.config.schema import Config
from marl_ray.core.batch import UpdateStats
from marl_ray.core.ids import Policy
from marl_ray.core.streams import draw_task, draw_tasks
from marl_ray.core.tree import Episode
from marl_ray.core.waiting import Changes, crew, now, together
from marl_ray.credit.batches import is_informative
from marl_ray.rollout.assembly import Assembly, PolicyStream, assembled
from marl_ray.rollout.draws import Draws
from marl_ray.rollout.pipeline import Pipeline
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.batch_log import LoggedStep
from marl_ray.runs.check import Problem
from marl_ray.runs.checkpoints import step_of
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
        self.size = min(config.rollout.rollout_buffer_size, len(problem.train_tasks))
        """Draws that a step learns from; the last of an epoch may have fewer."""
        self.eval_tasks = problem.eval_tasks[: config.evaluation.eval_num_samples]
        self.evaluations = standing.evaluations(config, self.total) if self.eval_tasks else []
        k = config.rollout.max_staleness
        self.pipeline = Pipeline(config.num_agents, k, self.first, self.total, self.evaluations, self.logged)
        self.changes, self.log = Changes(), folder.log
        self.health, self.timeline = Health(config), Timeline(config.policies)
        self.player = EpisodePlayer(config, problem.environment, problem.transition, team.generators, team.sandbox)
        self.assemblies: dict[int, Assembly] = {}
        """Batches that are played, or not yet learned from by all, by step."""
        self.rollouts: dict[int, LoggedStep] = {}
        """Those that are complete and not yet recorded."""
        self.updates: dict[int, dict[Policy, UpdateStats]] = {}
        """By step and policy, of steps not yet recorded."""
        self.waiting: dict[int, Episode] = {}
        """With dynamic_sampling: episodes that are over, by draw, whose batch is not known yet."""
        self.drawn: dict[int, dict[int, tuple[Episode, bool]]] = {}
        """Then: all episodes of batches that are not yet in the log, by batch and draw, and which are informative."""
        self.unsent = dict.fromkeys(config.policies, False)
        """Whether a policy's weights have changed since they were sent last."""
        self.saved: set[tuple[int, Policy]] = set()
        """Step and policy of checkpoints not yet complete."""
        self.after: Row | None = None
        self.eval_episodes: list[Episode] = []

    async def run(self) -> Result:
        """Every step, with evaluations and checkpoints. Raises UserError."""
        ahead = min(self.config.rollout.max_staleness, self.total)
        lanes = ahead + 1  # batch b + k + 1 cannot start before batch b is complete
        if self.config.rollout.dynamic_sampling:
            draws = self.draws_from_here()
            played = [self.relearn(), self.draw(draws), self.log_drawn(draws)]
        else:
            played = [self.roll_out(lane, lanes) for lane in range(lanes)]
        await together(
            *played,
            *map(self.learn, self.team.learners),
            self.record(),
            self.evaluate(),
        )
        self.health.check_learning(self.state.learned, self.state.step)
        return Result(self.state.step, self.state.env_steps, self.first, self.after, self.eval_episodes)

    async def roll_out(self, lane: int, lanes: int) -> None:
        """Play every `lanes`-th batch. The first lane brings those of the log before."""
        if lane == 0:
            await self.relearn()
        for step in range(self.logged + lane, self.total, lanes):
            await self.changes.until(partial(self.may_start, step))
            await self.play(step)

    def may_start(self, step: int) -> bool:
        """Whether it is this batch that may start now."""
        return self.pipeline.next_batch == step

    async def play(self, step: int) -> None:
        """Play a batch's episodes. Learners take its nodes as they come, and may use them once they are in the log."""
        tasks = self.problem.train_tasks
        drawn = draw_tasks(len(tasks), self.config.rollout.rollout_buffer_size, step, self.config.seed)
        assembly = self.begin(len(drawn))
        episodes = await self.player.rollout([tasks[i] for i in drawn], step, assembly)
        await self.complete(step, episodes)

    def begin(self, draws: int | None) -> Assembly:
        """The batch that may start now is started; `draws` as in `Assembly`."""
        step = self.pipeline.start()
        self.timeline.play(step)
        self.assemblies[step] = assembly = Assembly(step, draws, self.config, self.changes.tell)
        self.changes.tell()
        return assembly

    async def complete(self, step: int, episodes: list[Episode], skipped: tuple[int, ...] = ()) -> None:
        """A batch's episodes are over: look at them, and write it to the log. `skipped`: see `LoggedStep`."""
        seconds, executions = self.timeline.played(step), self.team.sandbox.take_executions()
        self.health.check_rollout(episodes, step)
        batches = self.assemblies[step].batches
        row, draws = rollout_row(self.config, episodes, batches, seconds, executions), 0
        if self.config.rollout.dynamic_sampling:
            row["rollout/skipped"], draws = len(skipped), len(episodes)
            self.health.check_draws(step, draws, draws - len(skipped), self.size, self.state.learned)
        rollout = LoggedStep(
            step=step,
            batches=tuple(batches),
            joint_samples=joint_samples(episodes),
            row=row,
            episodes=tuple(map(record_of, episodes[: self.config.output.episodes_per_step])),
            draws=draws,
            skipped=skipped,
        )
        await self.changes.until(lambda: self.pipeline.in_log == step)
        await asyncio.to_thread(self.log.append, rollout)
        self.rollouts[step] = rollout
        self.pipeline.logged(step)
        self.changes.tell()

    def draws_from_here(self) -> Draws:
        """Where the log ends."""
        draw = self.state.draws + sum(map(self.log.draws, range(self.first, self.logged)))
        return Draws(self.size, most_draws(self.config, self.size), self.logged, draw, self.total)

    async def draw(self, draws: Draws) -> None:
        """Play draws as they may start, as many as it takes."""

        def something_to_do() -> bool:
            return draws.batch == self.total or draws.may_start(self.pipeline.open_until)

        async with crew() as playing:
            while True:
                await self.changes.until(something_to_do)
                if draws.batch == self.total:
                    return
                batch = draws.latest_batch
                while self.pipeline.started <= batch:
                    self.drawn[self.begin(None).step] = {}
                playing.create_task(self.play_draw(draws, draws.start(), batch))

    async def play_draw(self, draws: Draws, draw: int, batch: int) -> None:
        """Play one draw, in `batch` or one before, and give the learners all that are known to be theirs by it."""
        tasks, seed = self.problem.train_tasks, self.config.seed
        task, size = tasks[draw_task(len(tasks), draw, seed)], self.config.rollout.num_generations
        self.waiting[draw] = episode = await self.player.play(task, size, "train", draw, priority=batch)
        for placed in draws.played(draw, is_informative(episode, self.config)):
            episode, assembly = self.waiting.pop(placed.draw), self.assemblies[placed.batch]
            self.drawn[placed.batch][placed.draw] = episode, placed.informative
            if placed.informative:
                assembly.add_episode(placed.draw, episode)
            if placed.last:
                assembly.close()
        self.changes.tell()

    async def log_drawn(self, draws: Draws) -> None:
        """Complete batches in their order."""
        for step in range(self.logged, self.total):
            await self.changes.until(partial(draws.is_complete, step))
            drawn = self.drawn.pop(step)
            skipped = tuple(draw for draw, (_, informative) in drawn.items() if not informative)
            await self.complete(step, [episode for episode, _ in drawn.values()], skipped)

    async def relearn(self) -> None:
        """Bring the batches that are in the log already."""
        for step in range(self.first, self.logged):
            await self.take_from_log(step)

    async def take_from_log(self, step: int) -> None:
        """A batch that was played before; not sooner than somebody needs it."""
        await self.changes.until(lambda: step <= min(self.pipeline.versions) + 1)
        self.rollouts[step] = rollout = await asyncio.to_thread(self.log.read, step, self.config.num_agents)
        self.assemblies[step] = assembled(step, rollout.batches, self.config)
        self.changes.tell()

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
        await self.changes.until(lambda: step in self.assemblies)
        assembly, may_update = self.assemblies[step], self.pipeline.may_update
        stream = PolicyStream(assembly, policy, self.changes.until, may_update, now() - begun)
        stats = await learner.learn(stream)
        learned = now()
        self.unsent[policy] |= stats.optimizer_steps > 0
        if step + 1 >= self.logged - self.config.rollout.max_staleness or step + 1 in self.evaluations:
            await learner.publish(self.unsent[policy])
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
        done, rollout = self.updates.pop(step), self.rollouts.pop(step)
        del self.assemblies[step]
        updates = {policy: done[policy] for policy in policies}
        learned = sum(stats.optimizer_steps for stats in updates.values())
        self.state = self.state.after(rollout.joint_samples, learned, rollout.draws)
        self.health.check_updates(list(updates.values()), self.state.step)
        self.rows.step(step_row(self.state, rollout.row, updates, self.timeline.row(step)), rollout.episodes)
        self.changes.tell()

    async def complete_checkpoint(self) -> None:
        """Make it visible, and forget the batches that all checkpoints cover: a learner may be on its way from one."""
        parts = {(self.state.step, policy) for policy in self.config.policies}
        await self.changes.until(lambda: parts <= self.saved)
        self.saved -= parts
        await asyncio.to_thread(self.folder.checkpoints.commit, self.state, self.config.output.keep_checkpoints)
        if not self.config.output.keep_batches:
            self.log.drop_before(step_of(self.folder.checkpoints.all()[0]))

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
