"""Size of a run in steps, groups and joint samples, computed from the config before anything starts."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from marl_ray.config.agent_section import AgentConfig
from marl_ray.config.algorithm_section import RolloutConfig
from marl_ray.config.schema import Config
from marl_ray.core.errors import UserError
from marl_ray.credit.requirements import estimator_requirements
from marl_ray.rollout import JOINT_MODES


@dataclass(frozen=True, slots=True)
class TrainingBudget:
    """Upper bounds per agent or policy; an episode that ends early has fewer turns."""

    steps_per_epoch: int
    total_steps: int
    groups_per_step: int
    joint_samples_per_step: int
    optimizer_steps_per_step: int
    learning_steps: int
    """Steps in which a policy learns, less than all of them with `learn_in_turns`."""

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of one policy in the whole run, over which its learning rate is scheduled."""
        return self.learning_steps * self.optimizer_steps_per_step


def joint_actions_by_turn(rollout: RolloutConfig, num_agents: int) -> list[int]:
    """Return the number of joint actions of a node in each turn: every combination of completions with joint_mode
    cross."""
    return [_joint_actions(rollout.joint_mode, size, num_agents) for size in rollout.group_sizes]


def _joint_actions(mode: str, size: int, agents: int) -> int:
    """Return the number of joint actions from one group of `size` completions per agent."""
    if mode not in JOINT_MODES.entries:
        with suppress(UserError):  # a config can be read without its plug-ins; they are checked when a run starts
            return len(JOINT_MODES.get(mode)([size] * agents))
    if mode == "cross":
        return size**agents
    return size


def max_prompts_per_step(rollout: RolloutConfig, tasks: int) -> int:
    """Return the maximum number of tasks sampled for a step that learns from `tasks`, with dynamic_sampling more."""
    if not rollout.dynamic_sampling:
        return tasks
    extra = rollout.max_extra_draws
    if extra is None:
        extra = 3 * rollout.rollout_buffer_size
    return tasks + extra


def samples_greedily(agents: Sequence[AgentConfig]) -> bool:
    """Return whether every node has an additional greedy joint sample."""
    return any(estimator_requirements(agent.estimator).greedy_sample for agent in agents)


def nodes_per_episode(rollout: RolloutConfig, num_agents: int) -> int:
    """Return the number of nodes of an episode: one per turn, or a complete tree with handoff all."""
    return sum(nodes_by_turn(rollout, num_agents))


def nodes_by_turn(rollout: RolloutConfig, num_agents: int) -> list[int]:
    """Return the number of nodes of an episode in each turn."""
    if rollout.handoff != "all":
        return [1] * rollout.num_turns
    joint_actions = joint_actions_by_turn(rollout, num_agents)
    return [math.prod(joint_actions[:turn]) for turn in range(rollout.num_turns)]


def completions_per_episode(rollout: RolloutConfig, num_agents: int) -> int:
    """Return the number of completions per agent in an episode, without greedy samples."""
    return sum(map(operator.mul, nodes_by_turn(rollout, num_agents), rollout.group_sizes))


def joint_samples_per_episode(rollout: RolloutConfig, num_agents: int) -> int:
    """Return the number of joint actions in an episode, without greedy samples."""
    return sum(map(operator.mul, nodes_by_turn(rollout, num_agents), joint_actions_by_turn(rollout, num_agents)))


def training_budget(config: Config, num_tasks: int) -> TrainingBudget:
    """Return the budget for a training set of `num_tasks`."""
    run = config.training
    tasks = min(run.rollout_buffer_size, num_tasks)
    steps_per_epoch = -(-num_tasks // run.rollout_buffer_size)
    limits: list[int] = []
    if run.num_train_epochs is not None:
        limits.append(steps_per_epoch * run.num_train_epochs)
    if run.max_steps is not None:
        limits.append(run.max_steps)
    total_steps = min(limits)
    nodes = nodes_per_episode(run, config.num_agents)
    groups = tasks * nodes
    samples_per_episode = joint_samples_per_episode(run, config.num_agents)
    if samples_greedily(config.agents):
        samples_per_episode += nodes
    return TrainingBudget(
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        groups_per_step=groups,
        joint_samples_per_step=max_prompts_per_step(run, tasks) * samples_per_episode,
        optimizer_steps_per_step=-(-groups // (run.train_batch_size or groups)),
        learning_steps=learning_steps(run.learn_in_turns, len(config.learning_policies), total_steps),
    )


def learning_steps(learn_in_turns: int, policies: int, total: int) -> int:
    """Return in how many of `total` steps the policy learns whose turn is first of `policies` that learn."""
    if not learn_in_turns:
        return total
    cycles, rest = divmod(total, learn_in_turns * policies)
    return cycles * learn_in_turns + min(rest, learn_in_turns)
