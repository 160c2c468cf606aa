"""The loop.

    what          consumes                     produces                    waits for
    ------------  ---------------------------  --------------------------  ----------------------------------
    rollout       tasks, weights v             trees of episodes           engines, sandbox, the expert if any
    credit        trees                        a batch an agent            nothing: pure
    update        batches                      weights v + 1, one learner  its own gradient; learners of
                                               group an agent              different agents at the same time
    publish       weights v + 1, if changed    generators at v + 1         the agent's own generators
    record        episodes, updates            rows                        the disk
    checkpoint,   learners, generators         files                       the slowest learner
    evaluation

Each wait has a deadline (`resources.deadlines`) and names who it waits for. Generators serve nothing before their first
weights, so the first rollout comes after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.actors.learners import LearnerGroup
from marl_ray.actors.team import Team
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.state import TrainerState
from marl_ray.core.stopwatch import Stopwatch
from marl_ray.core.streams import draw_tasks
from marl_ray.core.tree import Episode
from marl_ray.core.waiting import together
from marl_ray.credit.batches import credit
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.check import Problem
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.health import Health
from marl_ray.runs.preflight import probe_texts
from marl_ray.telemetry.rows import Row, evaluation_row, joint_samples, step_row
from marl_ray.telemetry.stream import RowStream


@dataclass(frozen=True, slots=True)
class Result:
    """Where a run ended and began, and its last evaluation; without eval tasks there is none."""

    step: int
    env_steps: int
    first_step: int
    after: Row | None
    eval_episodes: list[Episode]


class Trainer:
    """One run on a team whose generators have their first weights, from `state` to its last checkpoint."""

    def __init__(
        self, config: Config, problem: Problem, folder: RunFolder, state: TrainerState, team: Team, rows: RowStream
    ) -> None:
        self.config, self.problem, self.folder = config, problem, folder
        self.first = self.state = state
        self.team, self.rows = team, rows
        self.health = Health(config)
        self.player = EpisodePlayer(config, problem.environment, problem.transition, team.generators, team.sandbox)
        self.after: Row | None = None
        self.eval_episodes: list[Episode] = []

    async def run(self) -> Result:
        """Every step, with the evaluations and checkpoints between them. Raises UserError."""
        every, evaluate_every = self.config.loop.save_steps, self.config.evaluation.eval_interval
        total = arithmetic(self.config, len(self.problem.train_tasks)).total_steps
        if self.state.step == 0:
            await self.evaluate("before")
        while self.state.step < total:
            await self.step()
            step = self.state.step
            if evaluate_every and step % evaluate_every == 0 and step < total:
                await self.evaluate(f"step {step}")
            if step % every == 0 and step < total:
                await self.save()  # after the evaluation, which a resumed run would not take again
        await self.save()
        if self.config.output.save_final_model:
            await together(*map(self.export, self.team.learners))
        await self.evaluate("after")
        state = self.state
        self.health.check_learning(state.learned, state.step)
        return Result(state.step, state.env_steps, self.first.step, self.after, self.eval_episodes)

    async def step(self) -> None:
        """Rollout, credit, update, publish, record."""
        watch = Stopwatch()
        with watch.of("step"):
            with watch.of("rollout"):
                episodes = await self.rollout()
            batches = credit(episodes, self.state.step, self.config)
            learners = zip(batches, self.team.learners, strict=True)
            updates = await together(*(self.update_and_publish(batch, learner, watch) for batch, learner in learners))
        self.record(episodes, updates, watch)

    async def rollout(self) -> list[Episode]:
        """The trees of the step's tasks, at today's weights."""
        tasks, step = self.problem.train_tasks, self.state.step
        drawn = draw_tasks(len(tasks), self.config.rollout.rollout_buffer_size, step, self.config.seed)
        episodes = await self.player.rollout([tasks[i] for i in drawn], step)
        self.health.check_rollout(episodes, (step,) * self.config.num_agents, step + 1)
        return episodes

    async def update_and_publish(self, batch: Batch, learner: LearnerGroup, watch: Stopwatch) -> UpdateStats:
        """One agent's update, then its weights to its own generators.

        Weights that did not change are not sent: the generators serve what they have under the next version.
        """
        with watch.of("learn"):
            stats = await learner.update(batch)
        publish = learner.publish if stats.optimizer_steps else learner.relabel
        with watch.of("sync"):
            await publish(self.state.step + 1)
        return stats

    def record(self, episodes: list[Episode], updates: list[UpdateStats], watch: Stopwatch) -> None:
        """The step is done: count it, and tell of it."""
        self.state = state = self.state.after(joint_samples(episodes), sum(stats.optimizer_steps for stats in updates))
        self.health.check_updates(updates, state.step)
        executions = self.team.sandbox.take_executions()
        self.rows.step(step_row(self.config, state, episodes, updates, watch.seconds, executions), episodes)

    async def evaluate(self, name: str) -> None:
        """Play the eval tasks and tell of it."""
        tasks = self.problem.eval_tasks[: self.config.evaluation.eval_num_samples]
        if not tasks:
            return
        watch = Stopwatch()
        with watch.of("eval"):
            episodes = await self.player.evaluate(tasks)
        self.team.sandbox.take_executions()  # a step's are its own
        self.after, self.eval_episodes = evaluation_row(self.config, self.state, episodes, watch.seconds), episodes
        self.rows.evaluation(self.after, name, episodes)

    async def save(self) -> None:
        """A checkpoint: complete, or invisible."""
        checkpoints, learners = self.folder.checkpoints, self.team.learners
        path = checkpoints.begin(self.state.step, len(learners))
        await together(*(x.save(str(checkpoints.agent_folder(path, x.agent))) for x in learners))
        self.folder.commit(path, self.state, self.config.output)

    async def export(self, learner: LearnerGroup) -> None:
        """One agent's trained model, as transformers loads it."""
        texts = probe_texts(self.problem.environment, self.problem.train_tasks, learner.agent)
        await learner.export(str(self.folder.model(learner.agent)), texts)
