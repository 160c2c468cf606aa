"""The training loop: how a completion becomes a gradient, and new weights reach the generators.

      prompts --> Player --> BatchBuilder --groups--> GroupQueue --> LearnerGroup.learn --> update_weights
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
from marl_ray.core.batch import UpdateStats
from marl_ray.core.concurrency import Condition, gather, now
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainingResult
from marl_ray.environments import abilities
from marl_ray.rollout.turn_player import make_player
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
from marl_ray.weights.receiver import WeightSyncResult


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
        self.config = config
        self.inputs = inputs
        self.folder = folder
        self.actors = actors
        self.first = resume_state.state.step
        self.logged = resume_state.logged
        self.total = training_budget(config, len(inputs.train_tasks)).total_steps
        self.eval_tasks = inputs.eval_tasks[: config.training.eval_num_samples]
        self.evaluations: list[int] = []
        """Steps of the evaluations that are still due."""
        if self.eval_tasks:
            self.evaluations = resume_state.evaluations(config.training.eval_interval, self.total)
        staleness = config.training.max_staleness
        self.gate = SchedulingGate(config.num_agents, staleness, self.first, self.total, self.evaluations, self.logged)
        self.condition = Condition()
        self.health = HealthMonitor(config)
        self.timeline = Timeline(config.policies)
        self.player = make_player(config, inputs.environment, actors.generators, actors.sandbox, inputs.transition)
        context = LoopContext(config, folder, resume_state, self.gate, self.condition, self.health, self.timeline)
        self.producer = BatchProducer(context, inputs, self.player, actors.sandbox)
        self.saver = CheckpointSaver(context)
        self.recorder = StepRecorder(context, self.producer, actors, self.saver, metrics)
        self._changed = dict.fromkeys(config.policies, False)
        """Whether a policy's weights have changed since they were last sent."""

    async def run(self) -> TrainingResult:
        """Run all remaining steps with their evaluations and checkpoints. Raises UserError."""
        try:
            await gather(
                *self.producer.coroutines(),
                *map(self.learn, self.actors.learners),
                self.recorder.record(),
                self.saver.commit_all(),
                self.evaluate(),
            )
        except (asyncio.CancelledError, UserError, ActorFailed):
            # A checkpoint whose parts are all being written is worth the wait.
            await self.saver.finish()
            raise
        finally:
            self.saver.close()
            await abilities.close(self.inputs.environment)
        self.recorder.write_spans()
        state = self.recorder.state
        self.health.check_learning(state.optimizer_steps, state.step)
        return TrainingResult(
            state.step,
            state.env_steps,
            self.first,
            self.recorder.last_evaluation,
            self.recorder.evaluation_episodes,
        )

    async def learn(self, learner: LearnerGroup) -> None:
        """Make all updates of one policy, save its checkpoints and export its trained model."""
        policy = learner.policy
        for step in range(self.first, self.total):
            version = step + 1
            queue = self.producer.queue(step, policy)  # which episodes fill while this policy learns from it
            self.timeline.start_learner_step(policy)
            stats = await learner.learn(queue)
            learned_at = now()
            sync_result = await self._update_weights(learner, version, stats)
            self.timeline.finish_learner_step(step, policy, learned_at, queue.waits)
            self.recorder.learned(queue, policy, stats, sync_result)
            # From here on the generators serve the version, so the next batches may start.
            for agent in policy.agents:
                self.gate.weights_updated(agent, version)
            self.producer.release_batches()
            if self.saver.is_due(version):
                await self.saver.save(learner, version)
                self.timeline.finish_save(step, policy)
        if self.config.output.save_final_model:
            await self._export(learner)
            self.timeline.finish_save(self.total - 1, policy)

    async def _update_weights(self, learner: LearnerGroup, version: int, stats: UpdateStats) -> WeightSyncResult | None:
        """Let the generators serve the learner's weights, if an episode will be sampled with this version."""
        policy = learner.policy
        if stats.optimizer_steps > 0:
            self._changed[policy] = True
        # Batches below `logged` are learned from the log: no episode is sampled for them.
        is_sampled = version >= self.logged - self.config.training.max_staleness
        if not is_sampled and version not in self.evaluations:
            return None
        result = await learner.update_weights(self._changed[policy])
        self._changed[policy] = False
        return result

    async def _export(self, learner: LearnerGroup) -> None:
        """Write the trained model of a policy, whose tokenizer is verified on prompts of all of its agents."""
        # Agents of one policy have prompts of their own, and one tokenizer.
        texts: list[str] = []
        for agent in learner.policy.agents:
            texts += self.inputs.probe_texts(agent)
        await learner.export(str(self.folder.model(learner.policy)), texts)

    async def evaluate(self) -> None:
        """Run all evaluations, each with exactly the weights of its step."""
        for step in self.evaluations:
            # The row of the step precedes the row of its evaluation.
            await self.condition.wait_for(lambda s: self.gate.evaluation == s == self.recorder.state.step, step)
            self.timeline.start_rollout()
            episodes = await self.player.evaluate(self.eval_tasks)
            share = self.config.training.max_failed_rewards
            check_failed_rewards(episodes, f"the evaluation at step {step}", share, self.config.algorithm)
            measures = await self.producer.measures.measure(episodes, evaluation=True)
            seconds = self.timeline.finish_rollout()
            if self.config.training.max_staleness == 0:
                # The next step counts its own executions and depths only.
                self.actors.sandbox.take_executions()
                self.actors.take_queue_metrics()
            self.recorder.evaluated(episodes, measures, seconds)
            self.gate.evaluated(step)
            self.producer.release_batches()
