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

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marl_ray.actors.team import Team, start_team
from marl_ray.config import to_yaml
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.batch import Batch, UpdateStats
from marl_ray.core.streams import draw_tasks
from marl_ray.core.tree import Episode
from marl_ray.core.waiting import together
from marl_ray.credit.batches import batch_of_agent
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.check import Problem
from marl_ray.runs.checkpoints import TrainerState
from marl_ray.runs.folder import RunFolder
from marl_ray.runs.health import Health
from marl_ray.telemetry.console import say
from marl_ray.telemetry.rows import Row, evaluation_row, joint_samples, step_row
from marl_ray.telemetry.stream import open_stream


@dataclass(slots=True)
class Result:
    """What a run came to: where it stands, where it began, and its last evaluation."""

    state: TrainerState
    first_step: int
    after: Row | None = None
    eval_episodes: list[Episode] = field(default_factory=list)


class Trainer:
    """One run, from its first weights to its last checkpoint. `resumed`: a checkpoint to go on from, and its state."""

    def __init__(
        self, config: Config, problem: Problem, folder: RunFolder, resumed: tuple[Path, TrainerState] | None
    ) -> None:
        self.config, self.problem, self.folder = config, problem, folder
        self.arithmetic = arithmetic(config, len(problem.train_tasks))
        self.resume_from, self.state = resumed or (None, TrainerState(0, 0, (0,) * config.num_agents, 0))
        self.first = self.state
        self.health = Health(config)
        self.result = Result(self.state, self.state.step)

    async def run(self) -> Result:
        """Start the actors, train, and write everything. Raises UserError."""
        started = time.monotonic()
        self.team = await start_team(self.config, self.arithmetic.optimizer_steps, say)
        try:
            await self.prepare(self.team)
            say(f"actors ready after {time.monotonic() - started:.0f} s; weights travel by {self.team.transport}")
            self.folder.config.write_text(to_yaml(self.config))
            self.player = EpisodePlayer(
                self.config, self.problem.environment, self.problem.transition, self.team.generators, self.team.sandbox
            )
            total = self.arithmetic.total_steps
            self.rows = open_stream(self.config, self.folder, self.state.step, total, fresh=self.resume_from is None)
            try:
                await self.loop(total)
            finally:
                self.rows.close()
        finally:
            await self.team.close()
        self.health.check_learning(self.state.learned - self.first.learned, self.state.step)
        return self.result

    async def loop(self, total: int) -> None:
        """Every step, with the evaluations and checkpoints between them."""
        loop, interval = self.config.loop, self.config.evaluation.eval_interval
        if self.resume_from is None:
            await self.evaluate("before")
        while self.state.step < total:
            await self.step()
            step = self.state.step
            if step % loop.save_steps == 0 and step < total:
                await self.save()
            if interval and step % interval == 0 and step < total:
                await self.evaluate(f"step {step}")
        await self.save()
        if self.config.output.save_final_model:
            await self.export()
        await self.evaluate("after")

    async def step(self) -> None:
        """Rollout, credit, update, publish, record."""
        begun = time.monotonic()
        episodes = await self.rollout()
        rollout_s = time.monotonic() - begun
        batches = self.credit(episodes)
        results = await together(*(self.update_and_publish(batch, agent) for agent, batch in enumerate(batches)))
        updates = [stats for stats, _, _ in results]
        seconds = {
            "rollout": rollout_s,
            "learn": max(learn_s for _, learn_s, _ in results),
            "sync": max(sync_s for _, _, sync_s in results),
        }
        self.record(episodes, updates, seconds | {"step": time.monotonic() - begun})

    async def rollout(self) -> list[Episode]:
        """The trees of the step's tasks, at today's weights."""
        tasks = self.problem.train_tasks
        step, size = self.state.step, self.config.rollout.rollout_buffer_size
        drawn = [tasks[i] for i in draw_tasks(len(tasks), size, step, self.config.seed)]
        episodes = await self.player.rollout(drawn, step)
        self.health.check_rollout(episodes, self.state.weight_versions, step + 1)
        return episodes

    def credit(self, episodes: Sequence[Episode]) -> list[Batch]:
        """Each agent's batch."""
        agents = range(self.config.num_agents)
        return [batch_of_agent(episodes, agent, self.state.step, self.config) for agent in agents]

    async def update_and_publish(self, batch: Batch, agent: int) -> tuple[UpdateStats, float, float]:
        """One agent's update, then its weights to its generators. Returns stats, learn and sync seconds.

        Weights that did not change are not sent: the generators serve what they have under the next version.
        """
        begun = time.monotonic()
        learner = self.team.learners[agent]
        stats = await learner.update(batch)
        learned = time.monotonic()
        publish = learner.publish if stats.optimizer_steps else learner.relabel
        await publish(self.state.weight_versions[agent] + 1)
        return stats, learned - begun, time.monotonic() - learned

    def record(self, episodes: list[Episode], updates: list[UpdateStats], seconds: dict[str, float]) -> None:
        """The step is done: count it, and tell of it."""
        state = self.state
        self.state = self.result.state = TrainerState(
            step=state.step + 1,
            env_steps=state.env_steps + joint_samples(episodes),
            weight_versions=tuple(version + 1 for version in state.weight_versions),
            learned=state.learned + sum(stats.optimizer_steps for stats in updates),
        )
        self.health.check_updates(updates, self.state.step)
        executions = self.team.sandbox.take_executions()
        self.rows.step(step_row(self.config, self.state, episodes, updates, seconds, executions), episodes)

    async def evaluate(self, name: str) -> None:
        """Play the eval tasks and tell of it; without eval tasks nothing."""
        tasks = self.problem.eval_tasks[: self.config.evaluation.eval_num_samples]
        if not tasks:
            return
        begun = time.monotonic()
        episodes = await self.player.evaluate(tasks, name)
        row = evaluation_row(self.config, self.state, episodes, time.monotonic() - begun)
        self.team.sandbox.take_executions()
        self.rows.evaluation(row, name, episodes)
        self.result.after, self.result.eval_episodes = row, episodes

    async def save(self) -> None: ...
    async def export(self) -> None: ...
    async def prepare(self, team: Team) -> None: ...
