"""The training loop: how a completion becomes a gradient, and new weights reach the generators.

      prompts --> EpisodeRunner --> BatchBuilder --groups--> GroupQueue --> LearnerGroup.learn --> update_weights
                   |       ^            |                     one per policy   accumulate, then        |
      generation actors, sandbox        |                     and batch        one optimizer step      |
                   ^                    v                         ^            per mini-batch          |
                   |                BatchLog ----complete batch---+                                    |
                   +---------------------- weights with the next version ------------------------------+

The learner receives a batch from memory once it is in the log. The table lists the conditions of each task; none polls.

    task       number            for each step                            waits for
    ---------  ----------------  ---------------------------------------  -----------------------------------------
    producer   max_staleness     roll out the batch, put its groups on    SchedulingGate: version b - max_staleness
               + 1 (1 with       the queues, write it to the log, close   of every agent before batch b starts;
               dynamic sampling) the queues                               generation actors, sandbox, other models
    learn      one per policy    accumulate gradients, take the           GroupQueue.get: the next groups;
                                 optimizer steps, update the weights of   GroupQueue.batch: batch in the log and
                                 the generators, copy the state of a      no pending evaluation at this version;
                                 checkpoint                               the policy's previous write
    write      1 per policy      write the copy                           -
    record     1                 write the metrics                        updates of all policies
    commit     1                 make the checkpoint visible              metrics of its step; all of its parts
    evaluate   1                 run the evaluation tasks                 SchedulingGate: every agent at exactly
                                                                          this version; the step's metrics

With `max_staleness` 0 the loop is synchronous: batch b starts when every policy has version b. Waits for other machines
have a deadline that names the peer (`resources.deadlines`, and the timeouts of an expert or LLM judge). A resumed run
reads batches from the log instead of rolling them out again, and repeats their updates from the
checkpoint.
"""

from __future__ import annotations

import asyncio

from marl_ray.actors.handle import ActorFailed
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.run_actors import RunActors
from marl_ray.config import Config
from marl_ray.config.budget import training_budget
from marl_ray.core.concurrency import Condition, gather, now
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainingResult
from marl_ray.rollout.episode_runner import make_runner
from marl_ray.rollout.unscored import check_failed_rewards
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import MetricStream
from marl_ray.telemetry.timing import Timeline
from marl_ray.trainer.batch_producer import BatchProducer
from marl_ray.trainer.batch_scheduling import SchedulingGate
from marl_ray.trainer.checkpoint_saver import CheckpointSaver
from marl_ray.trainer.context import LoopContext, RunInputs
from marl_ray.trainer.health import HealthMonitor
from marl_ray.trainer.step_recorder import StepRecorder


class Trainer:
    """The training loop of one run, from `resume_state` to the last checkpoint.

    The generators of `actors` must have their first weights.
    """

    def __init__(
        self,
        config: Config,
        inputs: RunInputs,
        folder: RunFolder,
        resume_state: ResumeState,
        actors: RunActors,
        metrics: MetricStream,
    ) -> None:
        self.config, self.inputs, self.folder, self.actors = config, inputs, folder, actors
        self.first, self.logged = resume_state.state.step, resume_state.logged
        self.total = training_budget(config, len(inputs.train_tasks)).total_steps
        self.eval_tasks = inputs.eval_tasks[: config.evaluation.eval_num_samples]
        self.evaluations = resume_state.evaluations(config, self.total) if self.eval_tasks else []
        self.gate = SchedulingGate(
            config.num_agents, config.rollout.max_staleness, self.first, self.total, self.evaluations, self.logged
        )
        self.condition = Condition()
        self.health, self.timeline = HealthMonitor(config), Timeline(config.policies)
        self.runner = make_runner(config, inputs.environment, inputs.transition, actors.generators, actors.sandbox)
        context = LoopContext(config, folder, resume_state, self.gate, self.condition, self.health, self.timeline)
        self.producer = BatchProducer(context, inputs.train_tasks, self.runner, actors.sandbox)
        self.saver = CheckpointSaver(context)
        self.recorder = StepRecorder(context, self.producer, actors, self.saver, metrics)
        self._changed = dict.fromkeys(config.policies, False)
        """Whether a policy's weights have changed since they were last sent."""

    async def run(self) -> TrainingResult:
        """Run all remaining steps with their evaluations and checkpoints. Raises UserError."""
        recorder, learners = self.recorder, map(self.learn, self.actors.learners)
        try:
            work = recorder.record(), self.saver.commit_all(), self.evaluate()
            await gather(*self.producer.coroutines(), *learners, *work)
        except (asyncio.CancelledError, UserError, ActorFailed):
            await self.saver.finish()
            raise
        finally:
            self.saver.close()
            await self.inputs.environment.close()
        recorder.write_spans()
        state, evaluation = recorder.state, recorder.last_evaluation
        self.health.check_learning(state.optimizer_steps, state.step)
        return TrainingResult(state.step, state.env_steps, self.first, evaluation, recorder.evaluation_episodes)

    async def learn(self, learner: LearnerGroup) -> None:
        """Make all updates of one policy, save its checkpoints and export its trained model."""
        policy = learner.policy
        for step in range(self.first, self.total):
            queue = self.producer.queue(step, policy)
            self.timeline.start_learner_step(policy)
            stats = await learner.learn(queue)
            learned = now()
            self._changed[policy] |= stats.optimizer_steps > 0
            sync_result = None
            if self._needs_weights(step + 1):
                sync_result = await learner.update_weights(self._changed[policy])
                self._changed[policy] = False
            self.timeline.finish_learner_step(step, policy, learned, queue.waits)
            self.recorder.learned(step, policy, stats, sync_result)
            for agent in policy.agents:
                self.gate.weights_updated(agent, step + 1)
            self.producer.release_batches()
            if self.saver.is_due(step + 1):
                await self.saver.save(learner, step + 1)
                self.timeline.finish_save(step, policy)
        if self.config.output.save_final_model:
            texts = [text for agent in policy.agents for text in self.inputs.probe_texts(agent)]
            await learner.export(str(self.folder.model(policy)), texts)
            self.timeline.finish_save(self.total - 1, policy)

    def _needs_weights(self, version: int) -> bool:
        """Return whether an episode will be sampled with this version: not while learning from the log again."""
        return version >= self.logged - self.config.rollout.max_staleness or version in self.evaluations

    async def evaluate(self) -> None:
        """Run all evaluations, each with exactly the weights of its step."""
        for step in self.evaluations:
            await self.condition.wait_for(lambda s: self.gate.evaluation == s == self.recorder.state.step, step)
            self.timeline.start_rollout()
            episodes = await self.runner.evaluate(self.eval_tasks)
            check_failed_rewards(episodes, f"the evaluation at step {step}", self.config)
            measures = await self.producer.measures.measure(episodes, evaluation=True)
            seconds = self.timeline.finish_rollout()
            if self.config.rollout.max_staleness == 0:
                self.actors.sandbox.take_executions()  # the next step counts its own executions only
            self.recorder.evaluated(episodes, measures, seconds)
            self.gate.evaluated(step)
            self.producer.release_batches()
