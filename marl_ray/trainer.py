"""The loop.

    what          consumes                     produces                    waits for
    ------------  ---------------------------  --------------------------  ----------------------------------
    rollout       tasks, weights v             episodes                    engines, sandbox, the expert if any
    learn         episodes                     weights v + 1, one learner  its own gradient; learners of
                                               an agent, side by side      different agents at the same time
    sync          weights v + 1, if changed    generators at v + 1         the agent's own generators
    checkpoint,   learners, generators         files                       the slowest learner
    evaluation

Each wait has a deadline (`resources.deadlines`) and names who it waits for. Generators serve nothing before
their first sync, so the first rollout comes after it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_ray.cluster.launch import Fleet, launch
from marl_ray.cluster.plan import Plan, learner_name
from marl_ray.config import to_yaml
from marl_ray.config.arithmetic import Arithmetic, arithmetic
from marl_ray.config.schema import Config
from marl_ray.core.messages import Episode, UpdateStats
from marl_ray.core.streams import draw_tasks
from marl_ray.core.waiting import together, within
from marl_ray.credit.returns import groups_of_agent
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.runs.check import Problem
from marl_ray.runs.checkpoints import Checkpoints, TrainerState
from marl_ray.runs.preflight import check_fleet
from marl_ray.telemetry.console import Console, say
from marl_ray.telemetry.metrics import Row, episode_metrics, joint_samples, rollout_metrics, update_metrics
from marl_ray.telemetry.record import CONFIG_FILE, Record
from marl_ray.telemetry.wandb import Wandb

GAP_WORTH_A_WARNING = 0.05
TRANSPORTS = {"store": "Ray's object store", "nccl": "NCCL", "ipc": "CUDA IPC"}
GRACE_S = 10.0
"""A learner names the generator that it waited for in vain; this wait, a little longer, does not come before it."""


class TrainingError(RuntimeError):
    """The run cannot go on, or has learned nothing."""


@dataclass(slots=True)
class Outcome:
    """What a run came to, for the summary."""

    after: Row | None = None
    eval_episodes: list[Episode] = field(default_factory=list)


class Trainer:
    """One run, from its first sync to its last checkpoint."""

    def __init__(self, config: Config, problem: Problem, run_dir: Path, resume: bool) -> None:
        self.config = config
        self.problem = problem
        self.run_dir = run_dir
        self.checkpoints = Checkpoints(run_dir, config.output.keep_checkpoints)
        self.record = Record(run_dir)
        self.arithmetic: Arithmetic = arithmetic(config, len(problem.train_tasks))
        self.versions = [0] * config.num_agents
        self.step = self.env_steps = self.learned = self.bad_steps = 0
        self.first_step = self.learned_before = 0
        self.warned = False
        self.resume_from: Path | None = None
        if resume:
            self.resume_from, state = self.checkpoints.latest()
            self.step, self.env_steps, self.learned = state.step, state.env_steps, state.learned
            self.first_step, self.learned_before = state.step, state.learned
            self.versions = list(state.weight_versions)

    async def run(self) -> Outcome:
        """Start the actors, train, and write everything. Raises what `marl_ray.cli` turns into one line."""
        started = time.monotonic()
        fleet, plan, lines = await launch(self.config, self.arithmetic.optimizer_steps)
        for line in lines:
            say(line)
        try:
            await self._prepare(fleet, plan)
            say(
                f"actors ready after {time.monotonic() - started:.0f} s; weights travel by {TRANSPORTS[plan.transport]}"
            )
            (self.run_dir / CONFIG_FILE).write_text(to_yaml(self.config))
            return await self._loop(fleet)
        finally:
            await fleet.close()

    async def _loop(self, fleet: Fleet) -> Outcome:
        config, algorithm = self.config, self.config.algorithm
        assert fleet.sandbox is not None
        player = EpisodePlayer(config, self.problem.environment, self.problem.transition, fleet.agents, fleet.sandbox)
        total = self.arithmetic.total_steps
        console = Console(total, self.step, config.num_agents, algorithm.num_turns)
        tracker = Wandb(config, self.run_dir)
        outcome = Outcome()
        say("reward: mean of each turn; pass: share with all tests passed in the last turn; loss: of each agent")
        try:
            if self.resume_from is None:
                self.record.forget_after(-1)
                await self._evaluate(player, console, tracker, "before", outcome)
            else:
                self.record.forget_after(self.step)
            while self.step < total:
                row = await self._step(fleet, player)
                self.record.metrics(row)
                tracker.log(row)
                console.step(row, show=self.step % algorithm.logging_steps == 0 or self.step == total)
                if self.step % algorithm.save_steps == 0 and self.step < total:
                    await self._save(fleet)
                if algorithm.eval_interval and self.step % algorithm.eval_interval == 0 and self.step < total:
                    await self._evaluate(player, console, tracker, f"step {self.step}", outcome)
            await self._save(fleet)
            if config.output.save_final_model:
                await self._export(fleet)
            outcome.after = await self._evaluate(player, console, tracker, "after", outcome)
        finally:
            console.close()
            tracker.close()
        if self.learned == self.learned_before:
            raise TrainingError(
                f"no optimizer step up to step {total} had a gradient: every group's rewards were equal, so "
                "nothing was learned. Look at episodes.jsonl; raise temperature or num_generations"
            )
        return outcome

    async def _prepare(self, fleet: Fleet, plan: Plan) -> None:
        """Everything that must hold before the first rollout."""
        config, deadlines = self.config, self.config.resources.deadlines
        await check_fleet(config, fleet, self.problem.environment, self.problem.train_tasks, self.run_dir)
        ranks = config.resources.generator.tensor_parallel
        if self.resume_from is not None:
            folders = [self.checkpoints.agent_folder(self.resume_from, a) for a in range(config.num_agents)]
            await within(
                deadlines.checkpoint_s,
                "the learners to load the checkpoint",
                "checkpoint_s",
                together(*(x.load.remote(str(f)) for x, f in zip(fleet.learners, folders, strict=True))),
            )
        joins = [
            learner.connect.remote(generators, ranks, plan.transport, deadlines.sync_s)
            for learner, generators in zip(fleet.learners, fleet.generators, strict=True)
        ]
        await within(deadlines.sync_s + GRACE_S, "learners and generators to meet", "sync_s", together(*joins))
        pushes = [x.publish.remote(v) for x, v in zip(fleet.learners, self.versions, strict=True)]
        await within(deadlines.sync_s + GRACE_S, "the first weight sync", "sync_s", together(*pushes))

    async def _step(self, fleet: Fleet, player: EpisodePlayer) -> Row:
        """Rollout, then learning and sync; returns the step's row."""
        config, algorithm = self.config, self.config.algorithm
        assert fleet.sandbox is not None
        begun = time.monotonic()
        indices = draw_tasks(len(self.problem.train_tasks), algorithm.rollout_buffer_size, self.step, config.seed)
        tasks = [self.problem.train_tasks[i] for i in indices]
        executions = fleet.sandbox.executions
        episodes = await within(
            config.resources.deadlines.rollout_s,
            f"the episodes of step {self.step + 1}",
            "rollout_s",
            player.play_all(tasks, algorithm.num_generations, "train", self.step),
        )
        rollout_s = time.monotonic() - begun
        self._check_sandbox(episodes)
        self._check_versions(episodes)
        results = await together(
            *(self._learn(learner, agent, episodes) for agent, learner in enumerate(fleet.learners))
        )
        self.step += 1
        self.env_steps += joint_samples(episodes)
        self.learned += sum(stats.optimizer_steps for stats, _, _ in results)
        self._judge([stats for stats, _, _ in results])
        executed = fleet.sandbox.executions - executions
        self.record.episodes(self.step, "train", episodes[: config.output.episodes_per_step])
        row: Row = {"step": self.step, "env_steps": self.env_steps}
        row |= episode_metrics(episodes, algorithm.discount, algorithm.num_turns)
        for agent, (stats, _, _) in enumerate(results):
            row |= update_metrics(agent, stats, self.versions[agent])
        row |= rollout_metrics(episodes, rollout_s)
        row |= {
            "sandbox/executions": executed,
            "sandbox/executions_per_s": executed / rollout_s,
            "time/rollout": rollout_s,
            "time/learn": max(learn_s for _, learn_s, _ in results),
            "time/sync": max(sync_s for _, _, sync_s in results),
            "time/step": time.monotonic() - begun,
        }
        return row

    def _check_sandbox(self, episodes: list[Episode]) -> None:
        """One lost episode is counted; a step that lost all of them has no sandbox."""
        if all(e.stopped == "infra_error" and not e.nodes for e in episodes):
            raise TrainingError(f"the sandbox gave no verdict in step {self.step + 1}: {episodes[0].detail}")

    def _check_versions(self, episodes: list[Episode]) -> None:
        """Every token comes from the weights that are about to be updated: nothing stale is trained on."""
        for agent, version in enumerate(self.versions):
            found = {c.weight_version for e in episodes for node in e.nodes for c in node.completions[agent]}
            if not found <= {version}:
                raise TrainingError(f"agent {agent} is at version {version}, its generators served {sorted(found)}")

    async def _learn(self, learner: Any, agent: int, episodes: list[Episode]) -> tuple[UpdateStats, float, float]:
        """One agent's update and its sync. Returns stats, learn and sync seconds.

        Weights that did not change are not sent: the generators serve what they have under the next version.
        """
        deadlines = self.config.resources.deadlines
        begun = time.monotonic()
        stats = await within(
            deadlines.learn_s,
            f"the update of {learner_name(agent)}",
            "learn_s",
            learner.update.remote(groups_of_agent(episodes, agent)),
        )
        learned = time.monotonic()
        version = self.versions[agent] + 1
        await within(
            deadlines.sync_s + GRACE_S,
            f"the weight sync of {learner_name(agent)}",
            "sync_s",
            (learner.publish if stats.optimizer_steps else learner.relabel).remote(version),
        )
        self.versions[agent] = version
        return stats, learned - begun, time.monotonic() - learned

    def _judge(self, all_stats: list[UpdateStats]) -> None:
        """End the run after too many bad steps; warn once when sampler and learner disagree."""
        algorithm = self.config.algorithm
        bad = any(stats.skipped_steps for stats in all_stats)
        self.bad_steps = self.bad_steps + 1 if bad else 0
        if bad:
            say(f"step {self.step}: loss or gradient not finite, update skipped ({self.bad_steps} in a row)")
        if self.bad_steps >= algorithm.max_bad_steps:
            raise TrainingError(
                f"{self.bad_steps} steps in a row had a loss or gradient that is not finite: lower "
                f"{self.config.algorithm_name}.learning_rate and --resume"
            )
        gaps = [s.logprob_gap for s in all_stats if s.logprob_gap is not None]
        gap = max((gap for gap in gaps if math.isfinite(gap)), default=0.0)
        if gap > GAP_WORTH_A_WARNING and not self.warned:
            self.warned = True
            say(
                f"warning: sampler and learner differ by {gap:.3f} nats a token on the sampled tokens "
                "(top_p or top_k below neutral, or a dtype too coarse); see agent_*/logprob_gap"
            )

    async def _evaluate(
        self, player: EpisodePlayer, console: Console, tracker: Wandb, name: str, outcome: Outcome
    ) -> Row | None:
        """Play the eval tasks and write a row; None without eval tasks."""
        algorithm = self.config.algorithm
        tasks = self.problem.eval_tasks[: algorithm.eval_num_samples]
        if not tasks:
            return None
        begun = time.monotonic()
        episodes = await within(
            self.config.resources.deadlines.rollout_s,
            f"the evaluation {name}",
            "rollout_s",
            player.play_all(tasks, algorithm.eval_num_generations, "eval", evaluation=True),
        )
        metrics = episode_metrics(episodes, algorithm.discount, algorithm.num_turns)
        row: Row = {"step": self.step, "env_steps": self.env_steps}
        row |= {f"eval/{name}": value for name, value in metrics.items()}
        row["eval/episodes"] = len(episodes)
        row["eval/too_long_prompts"] = sum(e.stopped == "prompt_too_long" for e in episodes)
        row["eval/infra_errors"] = sum(e.stopped == "infra_error" for e in episodes)
        row["time/eval"] = time.monotonic() - begun
        self.record.metrics(row)
        self.record.episodes(self.step, "eval", episodes[: self.config.output.episodes_per_step])
        tracker.log(row)
        console.evaluation(row, name)
        outcome.eval_episodes = episodes
        return row

    async def _save(self, fleet: Fleet) -> TrainerState:
        """A checkpoint: complete, or invisible."""
        state = TrainerState(self.step, self.env_steps, tuple(self.versions), self.learned)
        path = self.checkpoints.begin(self.step, self.config.num_agents)
        await within(
            self.config.resources.deadlines.checkpoint_s,
            f"the learners to write checkpoint {self.step}",
            "checkpoint_s",
            together(
                *(
                    learner.save.remote(str(self.checkpoints.agent_folder(path, agent)))
                    for agent, learner in enumerate(fleet.learners)
                )
            ),
        )
        self.checkpoints.commit(path, state)
        return state

    async def _export(self, fleet: Fleet) -> None:
        """The trained models, as transformers loads them."""
        await within(
            self.config.resources.deadlines.checkpoint_s,
            "the learners to write the final models",
            "checkpoint_s",
            together(
                *(
                    learner.export.remote(str(self.run_dir / "models" / f"agent_{agent}"))
                    for agent, learner in enumerate(fleet.learners)
                )
            ),
        )
