"""Size of a run in steps, groups and joint samples, computed from the config before anything starts."""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from dataclasses import dataclass

from marl_ray.config.schema import Config
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from marl_ray.core.text import pluralize
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


def joint_actions_by_turn(config: Config) -> list[int]:
    """Return the number of joint actions of a node in each turn: every combination of completions with joint_mode
    cross."""
    return [_joint_actions(config.training.joint_mode, size, config.num_agents) for size in config.training.group_sizes]


def _joint_actions(mode: str, size: int, agents: int) -> int:
    """Return the number of joint actions from one group of `size` completions per agent."""
    if mode not in JOINT_MODES.entries:
        with suppress(UserError):  # a config can be read without its plug-ins; they are checked when a run starts
            return len(JOINT_MODES.get(mode)([size] * agents))
    return int(size ** (agents if mode == "cross" else 1))


def max_prompts_per_step(config: Config, tasks: int) -> int:
    """Return the maximum number of tasks sampled for a step that learns from `tasks`, with dynamic_sampling more."""
    if not config.training.dynamic_sampling:
        return tasks
    extra = config.training.max_extra_draws
    return tasks + (3 * config.training.rollout_buffer_size if extra is None else extra)


def samples_greedily(config: Config) -> bool:
    """Return whether every node has an additional greedy joint sample."""
    return any(estimator_requirements(agent.estimator).greedy_sample for agent in config.agents)


def nodes_per_episode(config: Config) -> int:
    """Return the number of nodes of an episode: one per turn, or a complete tree with handoff all."""
    return sum(nodes_by_turn(config))


def nodes_by_turn(config: Config) -> list[int]:
    """Return the number of nodes of an episode in each turn."""
    if config.training.handoff != "all":
        return [1] * config.training.num_turns
    return [math.prod(joint_actions_by_turn(config)[:turn]) for turn in range(config.training.num_turns)]


def completions_per_episode(config: Config) -> int:
    """Return the number of completions per agent in an episode, without greedy samples."""
    return sum(map(operator.mul, nodes_by_turn(config), config.training.group_sizes))


def joint_samples_per_episode(config: Config) -> int:
    """Return the number of joint actions in an episode, without greedy samples."""
    return sum(map(operator.mul, nodes_by_turn(config), joint_actions_by_turn(config)))


MIN_SEQUENCES = 64
"""Sequences that an engine can sample at once at least, for evaluations of runs with small steps."""


def sequences_in_flight(config: Config, policy: PolicyId) -> int | None:
    """Return the maximum number of completions that one engine of a policy samples at once in training, for all
    policies that use it, at least MIN_SEQUENCES and a multiple of 8; None if programs decide it."""
    if config.environment == "gateway":
        return None
    rollout, replicas = config.training, config.agents[policy.number].generator.replicas
    greedy = int(samples_greedily(config))
    per_turn = (nodes * (size + greedy) for nodes, size in zip(nodes_by_turn(config), rollout.group_sizes, strict=True))
    batches = 1 + rollout.max_staleness
    prompts = max_prompts_per_step(config, rollout.rollout_buffer_size)
    agents = sum(len(member.agents) for member in config.generator_policies(policy))
    sequences = agents * batches * prompts * max(per_turn)
    per_engine = -(-sequences // replicas)
    return max(MIN_SEQUENCES, -(-per_engine // 8) * 8)


def training_budget(config: Config, num_tasks: int) -> TrainingBudget:
    """Return the budget for a training set of `num_tasks`."""
    rollout, loop = config.training, config.training
    tasks = min(rollout.rollout_buffer_size, num_tasks)
    steps_per_epoch = -(-num_tasks // rollout.rollout_buffer_size)
    epochs = None if loop.num_train_epochs is None else steps_per_epoch * loop.num_train_epochs
    total = min(limit for limit in (epochs, loop.max_steps) if limit is not None)
    nodes = nodes_per_episode(config)
    per_episode = joint_samples_per_episode(config) + nodes * samples_greedily(config)
    samples = max_prompts_per_step(config, tasks) * per_episode
    groups = tasks * nodes
    optimizer_steps = -(-groups // (config.training.train_batch_size or groups))
    return TrainingBudget(steps_per_epoch, total, groups, samples, optimizer_steps, learning_steps(config, total))


def learning_steps(config: Config, total: int) -> int:
    """Return in how many of `total` steps the policy learns whose turn is first."""
    if not (length := config.training.learn_in_turns):
        return total
    cycles, rest = divmod(total, length * len(config.learning_policies))
    return cycles * length + min(rest, length)


def describe_budget(config: Config, num_tasks: int | None) -> str:
    """Return the budget in words. Without `num_tasks` (the dataset is not downloaded) only a step is described."""
    rollout = config.training
    budget = training_budget(config, num_tasks if num_tasks is not None else rollout.rollout_buffer_size)
    tasks = rollout.rollout_buffer_size if num_tasks is None else min(rollout.rollout_buffer_size, num_tasks)
    cross, tree = rollout.joint_mode == "cross", rollout.handoff == "all"
    nodes = pluralize(nodes_per_episode(config), "node") if tree else pluralize(rollout.num_turns, "turn")
    counts, noun = (joint_actions_by_turn(config), "joint action") if cross else (rollout.group_sizes, "generation")
    per_group = pluralize(counts[0], noun)
    if len(set(counts)) > 1:
        per_group = f"{', '.join(map(str, counts))} {noun}s by turn"
    shared = [policy for policy in config.policies if len(policy.agents) > 1]
    groups, samples = budget.groups_per_step, tasks * joint_samples_per_episode(config)
    lines = [
        f"one step: {pluralize(tasks, 'task')} x {nodes} = {pluralize(groups, 'group')} per agent; x {per_group} = "
        f"{pluralize(samples, 'joint sample')} ({pluralize(config.num_agents, 'completion')} each); "
        f"{pluralize(budget.optimizer_steps_per_step, 'optimizer step')} per {'policy' if shared else 'agent'}",
        *(f"{policy.introduction}: one learner, one update from the groups of all its agents" for policy in shared),
    ]
    if samples_greedily(config):
        names = dict.fromkeys(
            agent.estimator for agent in config.agents if estimator_requirements(agent.estimator).greedy_sample
        )
        lines.append(f"estimator {', '.join(names)}: one more greedy joint sample per node, as baseline only")
    if config.training.learn_in_turns:
        steps, policies = pluralize(config.training.learn_in_turns, "step"), len(config.learning_policies)
        lines.append(f"learn_in_turns: {policies} policies learn alternately, {steps} each")
    if rollout.dynamic_sampling:
        lines.append(
            f"dynamic_sampling: a step samples up to {pluralize(max_prompts_per_step(config, tasks), 'task')} and "
            f"learns from the first {tasks} in which rewards differ"
        )
    if num_tasks is None:
        lines.append(f"steps: one per {pluralize(tasks, 'task')} of {config.dataset.name}, not counted in a dry run")
    else:
        samples = budget.total_steps * budget.joint_samples_per_step
        lines.append(
            f"run: {pluralize(num_tasks, 'task')}, {pluralize(budget.steps_per_epoch, 'step')} per epoch, "
            f"{pluralize(budget.total_steps, 'step')}, at most {pluralize(samples, 'joint sample')}"
        )
    return "\n".join(lines)
