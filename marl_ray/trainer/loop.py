"""The loop, as coroutines that wait for facts and for nothing else.

    coroutine             does, for each of its steps            waits for
    --------------------  -------------------------------------  -------------------------------------------------
    rollouts              play episodes, log batches             the gate (`SchedulingGate`); engines, sandbox, the expert
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

from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.run_actors import RunActors
from marl_ray.config import Config
from marl_ray.config.budget import training_budget
from marl_ray.core.concurrency import Condition, gather, now
from marl_ray.core.episode import Episode
from marl_ray.launch.preflight import probe_texts
from marl_ray.launch.run_checks import RunInputs
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import MetricStream
from marl_ray.telemetry.timeline import Timeline
from marl_ray.trainer.batch_builder import PolicyStream
from marl_ray.trainer.batch_producer import BatchProducer, LoopContext
from marl_ray.trainer.health import HealthMonitor
from marl_ray.trainer.scheduling import SchedulingGate
from marl_ray.trainer.step_recorder import StepRecorder


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Where a run ended and began, and the last evaluation that it made, if any."""

    step: int
    env_steps: int
    first_step: int
    after: MetricRow | None
    eval_episodes: list[Episode]


class Trainer:
    """One run on a team whose generators have their first weights, from `standing` to its last checkpoint."""

    def __init__(
        self,
        config: Config,
        problem: RunInputs,
        folder: RunFolder,
        standing: ResumeState,
        team: RunActors,
        rows: MetricStream,
    ) -> None:
        self.config, self.inputs, self.folder, self.team = config, problem, folder, team
        self.first, self.logged = standing.state.step, standing.logged
        self.total = training_budget(config, len(problem.train_tasks)).total_steps
        self.eval_tasks = problem.eval_tasks[: config.evaluation.eval_num_samples]
        self.evaluations = standing.evaluations(config, self.total) if self.eval_tasks else []
        k = config.rollout.max_staleness
        self.gate = SchedulingGate(config.num_agents, k, self.first, self.total, self.evaluations, self.logged)
        self.condition = Condition()
        self.health, self.timeline = HealthMonitor(config), Timeline(config.policies)
        self.runner = EpisodeRunner(config, problem.environment, problem.transition, team.generators, team.sandbox)
        context = LoopContext(config, self.gate, self.condition, self.health, self.timeline)
        self.producer = BatchProducer(context, problem.train_tasks, self.runner, team.sandbox, standing, folder.log)
        self.recorder = StepRecorder(context, self.producer, team, folder, standing, rows)
        self.unsent = dict.fromkeys(config.policies, False)
        """Whether a policy's weights have changed since they were sent last."""

    async def run(self) -> TrainingResult:
        """Every step, with evaluations and checkpoints. Raises UserError."""
        await gather(
            *self.producer.coroutines(),
            *map(self.learn, self.team.learners),
            self.recorder.record(),
            self.evaluate(),
        )
        done, state = self.recorder, self.recorder.state
        self.health.check_learning(state.learned, state.step)
        return TrainingResult(state.step, state.env_steps, self.first, done.after, done.eval_episodes)

    async def learn(self, learner: LearnerGroup) -> None:
        """All of one policy's updates, its parts of the checkpoints, and its trained model."""
        policy = learner.policy
        for step in range(self.first, self.total):
            await self.update_and_publish(learner, step)
            if self.recorder.has_checkpoint(step + 1):
                await learner.save(str(self.folder.checkpoints.begin(step + 1, policy)))
                self.recorder.saved(step + 1, policy)
        if self.config.output.save_final_model:
            environment, tasks = self.inputs.environment, self.inputs.train_tasks
            texts = [text for agent in policy.agents for text in probe_texts(environment, tasks, agent)]
            await learner.export(str(self.folder.model(policy)), texts)

    async def update_and_publish(self, learner: LearnerGroup, step: int) -> None:
        """One policy's update from batch `step`, then its weights to its own generators, as version `step` + 1.

        Weights that did not change are not sent: the generators serve what they have under the next version. Nor are
        those that nothing will be played with, on the way through the log.
        """
        policy, begun = learner.policy, now()
        self.timeline.start_learner_step(policy)
        await self.condition.wait_for(lambda: step in self.producer.assemblies)
        assembly, may_update = self.producer.assemblies[step], self.gate.may_update
        stream = PolicyStream(assembly, policy, self.condition.wait_for, may_update, now() - begun)
        stats = await learner.learn(stream)
        learned = now()
        self.unsent[policy] |= stats.optimizer_steps > 0
        delivery = None
        if step + 1 >= self.logged - self.config.rollout.max_staleness or step + 1 in self.evaluations:
            delivery = await learner.update_weights(self.unsent[policy])
            self.unsent[policy] = False
        waited, done = stream.waited_s, now()
        self.timeline.finish_learner_step(
            step, policy, learn=learned - begun - waited, wait=waited, sync=done - learned
        )
        self.recorder.learned(step, policy, stats, delivery)
        for agent in policy.agents:
            self.gate.published(agent, step + 1)
        self.condition.notify_all()

    async def evaluate(self) -> None:
        """All evaluations, each with exactly its versions."""
        for step in self.evaluations:
            await self.evaluate_at(step)

    async def evaluate_at(self, step: int) -> None:
        """Play the eval tasks and tell of it."""
        await self.condition.wait_for(lambda: self.gate.evaluation == step == self.recorder.state.step)
        self.timeline.start_rollout()
        episodes = await self.runner.evaluate(self.eval_tasks)
        seconds = self.timeline.finish_rollout()
        if self.config.rollout.max_staleness == 0:
            self.team.sandbox.take_executions()  # a step's are its own
        self.recorder.evaluated(episodes, seconds)
        self.gate.evaluated(step)
        self.condition.notify_all()
